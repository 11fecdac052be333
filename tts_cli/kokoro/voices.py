"""Kokoro's voices: a pack of style rows, one for each length of a pass, and the name a person calls it by.

Names come from a listing of folders, so a name never reaches the file system. The first letter of a name is the
language the voice was made for.
"""

import math
import re
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tts_cli.errors import ModelFileError, UsageError

DEFAULT_VOICE = "af_heart"
SUFFIXES = (".pt", ".bin", ".npy", ".npz", ".safetensors")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_MAX_BYTES = 256 << 20
_LANGUAGE = re.compile(r"([abefhijpz])[fm]_")
# What NumPy's readers raise for damaged files.
_DAMAGED = (OSError, ValueError, TypeError, LookupError, EOFError, NotImplementedError, MemoryError, SyntaxError,
            tokenize.TokenError, zipfile.BadZipFile, zlib.error, struct.error)


@dataclass(frozen=True)
class KokoroVoice:
    """`rows` float32 [510, 2 * style]: row n - 1 is for a pass of n symbols; `language` a letter, "a" when unknown."""

    name: str
    rows: np.ndarray = field(repr=False)

    @property
    def language(self) -> str:
        match = _LANGUAGE.match(self.name)
        return match[1] if match else "a"


class Voices:
    """The voices that lie in some folders, read when they are asked for.

    `shape`: rows and width of a pack. Of two voices of one name the one of the earlier folder is taken.
    """

    def __init__(self, folders: Sequence[Path], shape: tuple[int, int]):
        self._shape = shape
        self._sources: dict[str, tuple[Path, str | None]] = {}
        for folder in folders:
            for path in sorted(folder.glob("*")) if folder.is_dir() else ():
                for name, member in _names(path):
                    if _NAME.fullmatch(name):
                        self._sources.setdefault(name, (path, member))

    @property
    def names(self) -> list[str]:
        return sorted(self._sources)

    @property
    def default(self) -> str | None:
        return DEFAULT_VOICE if DEFAULT_VOICE in self._sources else next(iter(self.names), None)

    def path(self, name: str) -> Path:
        """The file of a voice of that name. Raises `UsageError`."""
        return self._source(name)[0]

    def load(self, spec: str) -> KokoroVoice:
        """A name, or a mix: "af_heart:0.7,am_michael:0.3"; weights are normalised, without them all count the same.

        Raises `UsageError` for an unknown name or a mix that is not written so, `ModelFileError` for a damaged file.
        """
        parts = parse_mix(spec)
        packs = {name: self._rows(name) for name in dict.fromkeys(name for name, _ in parts)}
        if len(packs) == 1:
            return KokoroVoice(parts[0][0], packs[parts[0][0]])
        total = sum(weight for _, weight in parts)
        rows = sum(np.float32(weight / total) * packs[name] for name, weight in parts)
        return KokoroVoice(spec.strip(), rows)

    def load_file(self, path: Path) -> KokoroVoice:
        """The voice in a file that a person named. Raises `UsageError` or `ModelFileError`."""
        if not path.is_file():
            raise UsageError(f"{path}: no such file")
        if path.suffix.lower() not in SUFFIXES:
            raise UsageError(f"{path}: not a voice file; those are {', '.join(SUFFIXES)}")
        found = read_pack(path)
        if len(found) > 1:
            raise UsageError(f"{path} holds {len(found)} voices ({', '.join(list(found)[:8])}): put it into the folder "
                             "voices/ of a checkpoint and choose one by its name")
        return KokoroVoice(path.stem, self._checked(next(iter(found.values())), path))

    def _source(self, name: str) -> tuple[Path, str | None]:
        if name not in self._sources:
            known = ", ".join(self.names) or "none"
            raise UsageError(f"voice: {name!r} is unknown; there are {known}, and mixes such as NAME:0.7,NAME:0.3")
        return self._sources[name]

    def _rows(self, name: str) -> np.ndarray:
        path, member = self._source(name)
        found = read_pack(path)
        return self._checked(found[member] if member is not None else next(iter(found.values())), path)

    def _checked(self, array: np.ndarray, path: Path) -> np.ndarray:
        rows, width = self._shape
        if array.dtype.kind != "f" or array.size != rows * width or array.shape not in (
                (rows, width), (rows, 1, width), (rows * width,)):
            raise ModelFileError(f"{path}: a voice of this model is floats of shape [{rows}, 1, {width}], not "
                                 f"{array.dtype} {list(array.shape)}")
        array = array.reshape(rows, width).astype(np.float32)
        if not np.isfinite(array).all():
            raise ModelFileError(f"{path}: the voice holds values that are not numbers; download it again")
        return array


def parse_mix(spec: str) -> list[tuple[str, float]]:
    """"a:0.7,b:0.3", "a,b" or "a" as names with weights above 0. Raises `UsageError`."""
    parts = []
    for part in spec.split(","):
        name, colon, weight = (piece.strip() for piece in part.partition(":"))
        try:
            value = float(weight) if colon else 1.0
        except ValueError:
            value = math.nan
        if not name or not 0 < value <= 1e6:
            raise UsageError(f"voice: {spec!r} is not a voice; write a name, or a mix such as NAME:0.7,NAME:0.3 with "
                             "weights above 0")
        parts.append((name, value))
    return parts


def read_pack(path: Path) -> Mapping[str, np.ndarray]:
    """The arrays of a voice file by name, "" where it has none. Raises `UsageError` or `ModelFileError`."""
    kind = path.suffix.lower()
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ModelFileError(f"{path}: too large for a voice")
        if kind == ".pt":
            return _read_pt(path)
        if kind == ".safetensors":
            from tts_cli.kokoro.weights import read_safetensors

            found = {name: _array(tensor) for name, tensor in read_safetensors(path).items()}
        elif zipfile.is_zipfile(path):  # .npz, whatever it is called
            with np.load(path, allow_pickle=False) as archive:
                found = {name: archive[name] for name in archive.files}
        elif kind == ".npy":
            return {"": np.load(path, allow_pickle=False)}
        elif kind == ".bin":
            return {"": np.frombuffer(path.read_bytes(), "<f4")}
        else:
            raise ModelFileError(f"{path}: not an .npz archive")
    except _DAMAGED as error:
        if isinstance(error, OSError) and error.strerror:
            raise UsageError(f"{path}: {error.strerror}") from None
        raise ModelFileError(f"{path}: not a voice that can be read; download it again") from None
    if not found:
        raise ModelFileError(f"{path}: holds no voice")
    return found


def _read_pt(path: Path) -> dict[str, np.ndarray]:
    from torch import Tensor, strided

    from tts_cli.kokoro.weights import read_torch

    value = read_torch(path)
    if not isinstance(value, Tensor) or value.layout != strided or value.is_meta or value.is_quantized:
        raise ModelFileError(f"{path}: holds {type(value).__name__}, not the tensor of a voice")
    return {"": _array(value)}


def _array(tensor) -> np.ndarray:
    """bfloat16 has no counterpart in NumPy; whole numbers stay what they are, to be refused."""
    return (tensor.detach().float() if tensor.is_floating_point() else tensor.detach()).numpy()


def _names(path: Path) -> list[tuple[str, str | None]]:
    """The voices of a file in a listing, with the name of the array; none when it is no voice file."""
    if path.suffix.lower() not in SUFFIXES or not path.is_file():
        return []
    if path.suffix.lower() in (".npz", ".bin") and zipfile.is_zipfile(path):
        try:
            with zipfile.ZipFile(path) as archive:
                members = [name.removesuffix(".npy") for name in archive.namelist()]
        except (OSError, zipfile.BadZipFile, NotImplementedError, struct.error, ValueError):
            return [(path.stem, None)]  # the damage is told when it is chosen
        if len(members) > 1:
            return [(name, name) for name in members]
    return [(path.stem, None)]
