"""Which model to speak with, and on what: found, downloaded when needed, and opened."""

import os
from dataclasses import dataclass, replace
from difflib import get_close_matches

from tts_cli.engine import Engine
from tts_cli.errors import UsageError
from tts_cli.kokoro.packages import INSTALL
from tts_cli.loading import BUILTIN, NAMES, NANO, default_model, open_engine
from tts_cli.notices import Notices

# torch keeps 1,024 compiled kernels, one for each layer and length. Where lengths seldom come again that only fills and
# scatters the heap: 1.6 GB after eight clauses, 1.0 GB with this.
KERNELS_KEPT = "64"
MAX_THREADS = 1024  # OpenMP crashes where the system gives no more
DEFAULT_MODEL = {
    BUILTIN: "the built-in voice speaks (Kokoro-82M)",
    NANO: f"nano speaks, a very small model; natural English takes {INSTALL}"}
OTHER_MODELS = "for Qwen3-TTS give -m TALKER.gguf or -hf OWNER/NAME, or keep one: tts config set model TALKER.gguf"


def resolve_pair(pair: tuple[str, str | None] | str | None, told: Notices) -> tuple[str, str | None]:
    """Paths of the pair, downloaded first when it is a repository. Raises `UsageError` or `TtsError`."""
    if pair is None:
        return default_model(), None
    if isinstance(pair, str):
        from huggingface_hub.utils import disable_progress_bars

        from tts_cli.hub import resolve

        if not told.shows_progress:
            disable_progress_bars()
        talker, mmproj = resolve(pair)
        return str(talker), None if mmproj is None else str(mmproj)
    if pair[0] not in NAMES and not os.path.exists(pair[0]):  # told before torch is imported, which takes seconds
        near = get_close_matches(str(pair[0]), NAMES, n=1)
        raise UsageError(f"{pair[0]}: no such file{f'; did you mean {near[0]}?' if near else ''}")
    return pair


@dataclass(frozen=True)
class ModelChoice:
    """Which model to speak with, and on what; `pair` is what `locate_pair` found. Raises `UsageError`."""

    pair: tuple[str, str | None] | str | None
    device: str
    dtype: str
    threads: int | None
    gpu_layers: str | None
    graphs: bool = True

    def __post_init__(self):
        check_threads(self.threads)

    def open(self, told: Notices) -> Engine:
        """Download when needed, set the threads, read the headers: not the weights. Imports torch."""
        talker, mmproj = resolve_pair(self.pair, told)
        use_threads(self.threads)
        engine = open_engine(talker, mmproj, device=self.device, dtype=self.dtype, graphs=self.graphs,
                             progress=told.preparation("preparing the built-in voice"))
        if "codes" in engine.unused:  # whole clauses, each of a length of its own
            os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", KERNELS_KEPT)  # read when the first one is made
        for line in engine.describe():
            told.detail(line)
        if self.gpu_layers is not None:
            told.detail(f"-ngl {self.gpu_layers} is ignored: --device decides where to compute")
        return engine

    def named(self) -> "ModelChoice":
        """With a name where nobody chose: another machine, with other packages, would take another default."""
        return replace(self, pair=(default_model(), None)) if self.pair is None else self

    def tell(self, told: Notices, engine: Engine) -> None:
        """Say what speaks where nobody chose, and what the first run waits for."""
        if engine.first_run is not None:
            told.note(f"tts: {engine.first_run}, once; this takes some seconds")
        if self.pair is None:
            model = default_model()
            say = told.detail if model == BUILTIN and not told.shows_progress else told.note  # scripts know
            say(f"tts: {DEFAULT_MODEL[model]}; {OTHER_MODELS}")


def check_threads(threads: int | None) -> None:
    """Raises `UsageError`."""
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise UsageError(f"--threads: {threads} is out of range, it is 1 to {MAX_THREADS}")


def use_threads(threads: int | None) -> int:
    """Set torch's CPU threads: as asked, else OMP_NUM_THREADS, else one per physical core. Returns the number.

    Raises `UsageError`.
    """
    check_threads(threads)
    import torch

    if threads is None and "OMP_NUM_THREADS" not in os.environ:
        import psutil

        usable = os.cpu_count() or 1
        if hasattr(os, "sched_getaffinity"):
            usable = len(os.sched_getaffinity(0))
        threads = min(psutil.cpu_count(logical=False) or usable, usable)
    if threads is not None:
        torch.set_num_threads(threads)
    return torch.get_num_threads()
