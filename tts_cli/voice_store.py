"""Saved voices of a person: one small file each, found by name, and mixes of them."""

import os
import re
import shutil
from datetime import datetime, timezone
from pathlib import Path

from tts_cli.errors import TtsError, UsageError
from tts_cli.folders import data_folder
from tts_cli.voices import Voice, blend, describe_voice, load_voice, save_voice

SUFFIX = ".safetensors"
_NAME = re.compile(r"[^\W_][\w .+-]{0,63}")  # a name, not a path; mixes use : and ,


def voices_folder() -> Path:
    return data_folder() / "voices"


def names() -> list[str]:
    """Saved voices, in alphabetical order."""
    return sorted(path.stem for path in voices_folder().glob(f"*{SUFFIX}"))


def path_of(name: str, *, new: bool = False) -> Path:
    """The file of a saved voice, or with `new` of one to be. Raises `UsageError` with the list, or for a bad name."""
    if not _NAME.fullmatch(name) or name != name.strip() or name.endswith("."):
        raise UsageError(f"voice name {name!r}: use letters, digits, spaces and . + - _, beginning with a letter or "
                         "digit, at most 64")
    path = voices_folder() / f"{name}{SUFFIX}"
    if new and path.exists():
        raise UsageError(f"a voice {name!r} is there already: remove or rename it first")
    if not new and not path.exists():
        raise UsageError(f"there is no saved voice {name!r}; saved are {', '.join(names()) or 'none'} (speakers with a "
                         "name, such as ryan, are in CustomVoice checkpoints)")
    return path


def save(voice: Voice, **facts: str) -> Path:
    """Keep a voice under its name; `facts` go into its file. Raises `UsageError` when the name is taken, `TtsError`."""
    path = path_of(voice.name, new=True)
    _make_folder()
    save_voice(voice, path, created=datetime.now(timezone.utc).isoformat(timespec="seconds"), **facts)
    return path


def rename(old: str, new: str) -> None:
    """Raises `UsageError` or `TtsError`."""
    source, target = path_of(old), path_of(new, new=True)
    try:
        os.rename(source, target)
    except OSError as error:
        raise TtsError(f"cannot rename {source}: {error.strerror or error}") from error


def remove(name: str) -> None:
    """Raises `UsageError` or `TtsError`."""
    path = path_of(name)
    try:
        path.unlink()
    except OSError as error:
        raise TtsError(f"cannot remove {path}: {error.strerror or error}") from error


def add(file: str | Path, name: str | None = None) -> str:
    """Take a voice file in, under its file's name or another; returns the name. Raises `UsageError` or `TtsError`."""
    load_voice(file)  # whole and of this version, or refused
    name = Path(file).stem if name is None else name
    target = path_of(name, new=True)
    _make_folder()
    try:
        shutil.copyfile(file, target)
    except OSError as error:
        raise TtsError(f"cannot copy {file} to {target}: {error.strerror or error}") from error
    return name


def load(spec: str) -> Voice:
    """A voice by name or file, or a mix such as "anna:0.6,ben:0.4". Raises `UsageError`."""
    parts = _parts(spec)
    return _one(spec) if parts is None else blend([(_one(name), weight) for name, weight in parts])


def paths(spec: str) -> list[Path]:
    """The files of a voice or mix as `load` takes it. Raises `UsageError`."""
    parts = _parts(spec)
    return [_path(name) for name in ([spec] if parts is None else [name for name, _ in parts])]


def about(name: str) -> dict:
    """What a saved voice's file says of itself. Raises `UsageError`."""
    return describe_voice(_path(name))


def _parts(spec: str) -> list[tuple[str, float]] | None:
    """(name, weight) of the voices of a mix; None for a single voice."""
    if "," not in spec and (":" not in spec or spec.lower().endswith(SUFFIX)):  # a file may lie on a drive: C:\…
        return None
    return [_part(part) for part in spec.split(",")]


def _part(part: str) -> tuple[str, float]:
    name, colon, weight = part.rpartition(":")
    if not colon:
        return part.strip(), 1.0
    try:
        value = float(weight)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e6 or not name.strip():
        raise UsageError(f"voice mix {part!r}: write NAME:WEIGHT with a weight above 0, such as anna:0.6,ben:0.4")
    return name.strip(), value


def _one(name: str) -> Voice:
    path = _path(name)
    voice = load_voice(path)
    return voice if voice.name == path.stem else Voice(path.stem, voice.xvector, voice.codes, voice.ref_text,
                                                       voice.fingerprint, voice.model)


def _path(name: str) -> Path:
    return Path(name) if name.lower().endswith(SUFFIX) else path_of(name)


def _make_folder() -> None:
    try:
        voices_folder().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TtsError(f"cannot make {voices_folder()}: {error.strerror or error}") from error
