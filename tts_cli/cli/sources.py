"""Where the inputs of a run come from: the text, the model pair, the threads. Refuses before anything is loaded."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import typer

from tts_cli.cli.console import Console
from tts_cli.cli.options import only_one
from tts_cli.engine import Engine
from tts_cli.errors import UsageError
from tts_cli.loading import open_engine
from tts_cli.text import clean_text, decode_text

MAX_TEXT_BYTES = 16 << 20
NO_MODEL = ("no model: give -m TALKER.gguf (and -mm MMPROJ.gguf), or -hf OWNER/NAME[:QUANT] to download a pair, "
            "or --config FILE.toml that sets one of them")


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


def locate_pair(ctx: typer.Context, model: str | None, mmproj: str | None,
                hf_repo: str | None) -> tuple[str, str | None] | str:
    """(talker, mmproj or None) paths, or the repository to download; see `resolve_pair`.

    Raises `UsageError` when none or both were given.
    """
    chosen = only_one(ctx, {"model": model, "hf_repo": hf_repo})
    if chosen["hf_repo"]:
        only_one(ctx, {"mmproj": mmproj, "hf_repo": hf_repo})
        return chosen["hf_repo"]
    if chosen["model"]:
        return chosen["model"], mmproj
    raise UsageError(NO_MODEL)


def resolve_pair(pair: tuple[str, str | None] | str, console: Console) -> tuple[str, str | None]:
    """Paths of the pair, downloaded first when it is a repository. Raises `UsageError` or `TtsError`."""
    if isinstance(pair, str):
        from huggingface_hub.utils import disable_progress_bars

        from tts_cli.hub import resolve

        if not console.shows_progress:
            disable_progress_bars()
        talker, mmproj = resolve(pair)
        return str(talker), str(mmproj)
    return pair


@dataclass(frozen=True)
class ModelChoice:
    """Which model to speak with, and on what; `pair` is what `locate_pair` found."""

    pair: tuple[str, str | None] | str
    device: str
    dtype: str
    threads: int | None
    gpu_layers: str | None

    def open(self, console: Console) -> Engine:
        """Download when needed, set the threads, read the headers: not the weights. Imports torch."""
        talker, mmproj = resolve_pair(self.pair, console)
        use_threads(self.threads)
        engine = open_engine(talker, mmproj, device=self.device, dtype=self.dtype)
        for line in engine.describe():
            console.detail(line)
        if self.gpu_layers is not None:
            console.detail(f"-ngl {self.gpu_layers} is ignored: --device decides where to compute")
        return engine


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
