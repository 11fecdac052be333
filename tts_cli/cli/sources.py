"""Where the inputs of a run come from: the text, the model pair, the threads. Refuses before anything is loaded."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import typer

from tts_cli.cli.config import check_configured, is_setting
from tts_cli.cli.console import Console
from tts_cli.cli.options import only_one, typed
from tts_cli.engine import Engine
from tts_cli.errors import UsageError
from tts_cli.loading import BUILTIN, open_engine
from tts_cli.text import clean_text, decode_text

MAX_TEXT_BYTES = 16 << 20
# torch keeps 1,024 compiled kernels, one for each layer and length. Where lengths seldom come again that only fills and
# scatters the heap: 1.6 GB after eight clauses, 1.0 GB with this.
KERNELS_KEPT = "64"
VOICE_FILES = (".pt", ".bin", ".npy", ".npz", ".safetensors")
DEFAULT_MODEL = ("the built-in voice speaks (Kokoro-82M); for Qwen3-TTS give -m TALKER.gguf or -hf OWNER/NAME, or "
                 "keep one: tts config set model TALKER.gguf")


def read_text(ctx: typer.Context, prompt: str | None, file: str | None) -> str:
    """The one text given: -p, -f, or standard input when it is piped or asked for with `-`; cleaned.

    Bytes are UTF-8 whatever the locale. Raises `UsageError`: two sources, none, unreadable, too long, nothing to speak.
    """
    chosen = only_one(ctx, {"prompt": prompt, "file": file})
    prompt, file = chosen["prompt"], chosen["file"]
    if prompt is not None and prompt != "-":
        # An argument that the locale could not decode carries its bytes as lone surrogates.
        return clean_text(decode_text(os.fsencode(prompt), "--prompt"))
    if prompt == "-" or file == "-":
        return clean_text(_decoded(_read_stdin(), "standard input"))
    if file is not None:
        return clean_text(_decoded(_read_file(Path(file)), f"--file {file}"))
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError('no text: give -p "TEXT" or -f FILE, or pipe text in')
    return clean_text(_decoded(_read_stdin(), "standard input"))


def _read_stdin() -> bytes:
    if sys.stdin is None:
        raise UsageError("standard input is closed; give -p TEXT or -f FILE")
    return sys.stdin.buffer.read(MAX_TEXT_BYTES + 1)


def _read_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_TEXT_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--file {path}: {error.strerror}; give a readable UTF-8 text file") from None


def _decoded(raw: bytes, where: str) -> str:
    if len(raw) > MAX_TEXT_BYTES:
        raise UsageError(f"{where}: the text is longer than {MAX_TEXT_BYTES >> 20} MiB; speak it in parts")
    return decode_text(raw, where)


def read_ref_text(ctx: typer.Context, text: str | None, file: str | None) -> str | None:
    """What a recording says, given as it is or in a file; cleaned. Raises `UsageError`."""
    given = only_one(ctx, {"ref_text": text, "ref_text_file": file})
    if given["ref_text"] is not None:
        if not given["ref_text"].strip():
            raise UsageError("--ref-text is empty: give what the recording says")
        return clean_text(given["ref_text"])
    if given["ref_text_file"] is not None:
        return clean_text(_decoded(_read_file(Path(given["ref_text_file"])), f"--ref-text-file {file}"))
    return None


def read_voice(clip: str | Path, warn: Callable[[str], None]):
    """Samples of a reference clip; tells what is not right with one that can be used all the same."""
    from tts_cli.audio.read import clip_warnings, read_clip

    samples = read_clip(clip)
    for warning in clip_warnings(samples):
        warn(warning)
    return samples


def chosen_voice(ctx: typer.Context, voice: str | None, speaker_file: str | None,
                 no_voice: bool) -> tuple[str | None, Path | None, str | None]:
    """Of --voice, --speaker-file and --no-voice the one given: (name or mix, voice file, recording to clone).

    Raises `UsageError` when two were typed.
    """
    if is_setting(ctx, "voice") and (typed(ctx, "model") or typed(ctx, "hf_repo")):
        voice = None  # it goes with the model that is set
    given = only_one(ctx, {"voice": voice, "speaker_file": speaker_file, "no_voice": no_voice})
    voice, voice_file = name_or_file(given["voice"])
    return voice, voice_file, given["speaker_file"]


def name_or_file(voice: str | None) -> tuple[str | None, Path | None]:
    """What --voice says: the name or mix of a voice, or a voice file."""
    if voice is not None and (Path(voice).suffix.lower() in VOICE_FILES or "/" in voice or os.sep in voice):
        return None, Path(voice).expanduser()
    return voice, None


def locate_pair(ctx: typer.Context, model: str | None, mmproj: str | None,
                hf_repo: str | None) -> tuple[str, str | None] | str | None:
    """(talker, mmproj or None) paths, the repository to download, or None for the built-in model; see `resolve_pair`.

    Raises `UsageError` when two were given.
    """
    if typed(ctx, "model") and is_setting(ctx, "mmproj"):
        mmproj = None  # it goes with the model that is set
    chosen = only_one(ctx, {"model": model, "hf_repo": hf_repo})
    if chosen["hf_repo"]:
        only_one(ctx, {"mmproj": mmproj, "hf_repo": hf_repo})
        return chosen["hf_repo"]
    if chosen["model"]:
        check_configured(ctx, "model", chosen["model"])
        check_configured(ctx, "mmproj", mmproj)
        return chosen["model"], mmproj
    if mmproj is not None:
        raise UsageError("--mmproj goes with a talker: give -m TALKER.gguf, too")
    return None


def files_of(pair: tuple[str, str | None] | str | None) -> list[str]:
    """The files a choice names by their paths."""
    return [path for path in pair if path is not None and path != BUILTIN] if isinstance(pair, tuple) else []


def resolve_pair(pair: tuple[str, str | None] | str | None, console: Console) -> tuple[str, str | None]:
    """Paths of the pair, downloaded first when it is a repository. Raises `UsageError` or `TtsError`."""
    if pair is None:
        return BUILTIN, None
    if isinstance(pair, str):
        from huggingface_hub.utils import disable_progress_bars

        from tts_cli.hub import resolve

        if not console.shows_progress:
            disable_progress_bars()
        talker, mmproj = resolve(pair)
        return str(talker), None if mmproj is None else str(mmproj)
    return pair


@dataclass(frozen=True)
class ModelChoice:
    """Which model to speak with, and on what; `pair` is what `locate_pair` found."""

    pair: tuple[str, str | None] | str | None
    device: str
    dtype: str
    threads: int | None
    gpu_layers: str | None

    def open(self, console: Console) -> Engine:
        """Download when needed, set the threads, read the headers: not the weights. Imports torch."""
        talker, mmproj = resolve_pair(self.pair, console)
        use_threads(self.threads)
        engine = open_engine(talker, mmproj, device=self.device, dtype=self.dtype,
                             progress=console.preparation("preparing the built-in voice"))
        if "codes" in engine.unused:  # whole clauses, each of a length of its own
            os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", KERNELS_KEPT)  # read when the first one is made
        for line in engine.describe():
            console.detail(line)
        if self.gpu_layers is not None:
            console.detail(f"-ngl {self.gpu_layers} is ignored: --device decides where to compute")
        return engine

    def tell(self, console: Console) -> None:
        """Say what speaks where nobody chose."""
        if self.pair is None:
            console.note(f"tts: {DEFAULT_MODEL}")


def use_threads(threads: int | None) -> int:
    """Set torch's CPU threads: as asked, else OMP_NUM_THREADS, else one per physical core. Returns the number."""
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
