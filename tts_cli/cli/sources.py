"""Where the inputs of a run come from: the text, the voice, the model pair. Refuses before anything is loaded."""

import os
import sys
from pathlib import Path

import typer

from tts_cli.cli.config import check_configured, is_setting
from tts_cli.cli.options import only_one, typed
from tts_cli.errors import UsageError
from tts_cli.loading import NAMES
from tts_cli.manner import name_or_file
from tts_cli.text import MAX_TEXT_BYTES, clean_text, decode_text


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


def locate_pair(ctx: typer.Context, model: str | None, mmproj: str | None,
                hf_repo: str | None) -> tuple[str, str | None] | str | None:
    """(talker, mmproj or None) paths, the repository to download, or None where nobody chose; see
    `model_choice.resolve_pair`.

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
    return [path for path in pair if path is not None and path not in NAMES] if isinstance(pair, tuple) else []
