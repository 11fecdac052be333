"""A cloned voice: what conditions a talker, the name a person calls it by, and its file.

The file is safetensors: `xvector` float32 [H], `fingerprint` float32 [8, H] of the model it was made with, optionally
`codes` int32 [T, 16]; names and texts are in the metadata. It holds no audio.
"""

import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tts_cli.errors import TtsError, UsageError

VERSION = 1


@dataclass(frozen=True)
class Voice:
    """One speaker identity for one model.

    xvector      raw (unnormalised) ECAPA embedding, float32 [H], H = talker hidden size
    codes        the clip's codes, int32 [T, 16], and `ref_text`, what it says: cloning in context; both or neither
    fingerprint  of the model it was made with (`Pair.fingerprint`), and `model`, its name

    Raises `UsageError` when the numbers cannot be a voice.
    """

    name: str
    xvector: np.ndarray = field(repr=False)
    codes: np.ndarray | None = field(default=None, repr=False)
    ref_text: str | None = None
    fingerprint: np.ndarray | None = field(default=None, repr=False)
    model: str = ""

    def __post_init__(self):
        if self.xvector.ndim != 1 or not np.isfinite(self.xvector).all():
            raise UsageError(f"voice {self.name!r}: the x-vector must be one row of finite numbers, "
                             f"got shape {self.xvector.shape}")
        if (self.codes is None) != (self.ref_text is None):
            raise UsageError(f"voice {self.name!r}: codes and transcript go together")
        if self.codes is not None and (self.codes.ndim != 2 or not len(self.codes) or self.codes.min() < 0):
            raise UsageError(f"voice {self.name!r}: the codes must be frames of 16 numbers, got {self.codes.shape}")


def blend(voices: Sequence[tuple[Voice, float]]) -> Voice:
    """The weighted mean of x-vectors; transcripts are left out. Raises `UsageError` for voices of different models."""
    first = voices[0][0]
    if any(v.xvector.shape != first.xvector.shape for v, _ in voices):
        raise UsageError(f"voices {', '.join(v.name for v, _ in voices)} were made with models of different widths")
    total = sum(weight for _, weight in voices)
    mean = sum(v.xvector * np.float32(weight / total) for v, weight in voices)
    return Voice("+".join(v.name for v, _ in voices), mean, fingerprint=first.fingerprint, model=first.model)


def save_voice(voice: Voice, path: str | Path, **facts: str) -> None:
    """Write the voice's file, whole or not at all. `facts`: further metadata. Raises `TtsError`."""
    from safetensors.numpy import save

    tensors = {"xvector": voice.xvector, "codes": voice.codes, "fingerprint": voice.fingerprint}
    described = {"version": VERSION, "name": voice.name, "model": voice.model, "ref_text": voice.ref_text, **facts}
    data = save({k: np.ascontiguousarray(v) for k, v in tensors.items() if v is not None},
                metadata={"tts_cli.voice": json.dumps(described, ensure_ascii=False)})
    path = Path(path)
    temporary = path.parent / f".tts-{secrets.token_hex(8)}.part"
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise TtsError(f"cannot write {path}: {error.strerror or error}") from error


def describe_voice(path: str | Path) -> dict:
    """The metadata of a voice's file. Raises `UsageError`."""
    return _read(path)[1]


def load_voice(path: str | Path) -> Voice:
    """Raises `UsageError` for what is no voice file."""
    tensors, about = _read(path)
    expected = {"xvector": (np.float32, 1), "codes": (np.int32, 2), "fingerprint": (np.float32, 2)}
    for name, tensor in tensors.items():
        dtype, dimensions = expected.get(name, (None, None))
        if tensor.dtype != dtype or tensor.ndim != dimensions or not np.isfinite(tensor).all():
            raise UsageError(f"{path}: {name} {tensor.dtype} {tensor.shape} does not belong into a voice file")
    if "xvector" not in tensors:
        raise UsageError(f"{path}: holds no x-vector")
    fingerprint = tensors.get("fingerprint")
    if fingerprint is not None and fingerprint.shape[1] != len(tensors["xvector"]):
        raise UsageError(f"{path}: its fingerprint {fingerprint.shape} and its x-vector of {len(tensors['xvector'])} "
                         "numbers do not belong together")
    return Voice(str(about.get("name", Path(path).stem)), tensors["xvector"], tensors.get("codes"),
                 about.get("ref_text"), fingerprint, str(about.get("model", "")))


def _read(path: str | Path) -> tuple[dict[str, np.ndarray], dict]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads((file.metadata() or {}).get("tts_cli.voice", "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except (OSError, SafetensorError, ValueError, TypeError) as error:
        raise UsageError(f"{path}: not a voice file ({' '.join(str(error).split())[:100]})") from None
    if not isinstance(about, dict):
        raise UsageError(f"{path}: a safetensors file, but no voice; `tts voices save` makes one")
    if about.get("version") != VERSION:
        raise UsageError(f"{path}: a voice file of version {about.get('version')}, this program reads {VERSION}")
    return tensors, about
