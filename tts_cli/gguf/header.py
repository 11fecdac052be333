"""The header of a GGUF file: metadata and the tensor directory.

A walk of our own around gguf's enums and sizes, because `gguf.GGUFReader` trusts the file: it follows any count or
length it finds, and keeps several NumPy objects per string of the vocabulary. Here every length is held against the
bytes that are left, so that time and memory are bounded by the header's real size whatever the bytes say.

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import mmap
import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType

from tts_cli.errors import ModelFileError

MAX_HEADER = 64 << 20  # bytes; a vocabulary of 155k tokens with its merges takes 7 MB
MAX_NAME = 65535  # bytes in a key or tensor name
MAX_DIMENSIONS = 4
VERSIONS = (2, 3)

_SCALARS = {
    GGUFValueType.UINT8: struct.Struct("<B"), GGUFValueType.INT8: struct.Struct("<b"),
    GGUFValueType.UINT16: struct.Struct("<H"), GGUFValueType.INT16: struct.Struct("<h"),
    GGUFValueType.UINT32: struct.Struct("<I"), GGUFValueType.INT32: struct.Struct("<i"),
    GGUFValueType.UINT64: struct.Struct("<Q"), GGUFValueType.INT64: struct.Struct("<q"),
    GGUFValueType.FLOAT32: struct.Struct("<f"), GGUFValueType.FLOAT64: struct.Struct("<d"),
    GGUFValueType.BOOL: struct.Struct("<?"),
}
_U32, _U64 = _SCALARS[GGUFValueType.UINT32], _SCALARS[GGUFValueType.UINT64]


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies. `shape` is row-major as torch sees it (GGUF lists the dimensions the other way round)."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    offset: int  # bytes from the start of the file
    nbytes: int


@dataclass(frozen=True)
class Header:
    version: int
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]


@cache
def can_dequantise(kind: GGMLQuantizationType) -> bool:
    """Whether the gguf package turns this tensor type into float32."""
    _, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    try:
        with np.errstate(all="ignore"):
            gguf.quants.dequantize(np.zeros((1, block_bytes), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


class _Cursor:
    """A position in the header. Every read first checks that the bytes are there."""

    def __init__(self, buffer: mmap.mmap, path: Path):
        self.buffer = buffer
        self.path = path
        self.position = 0
        self.end = min(len(buffer), MAX_HEADER)

    def fail(self, message: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: {message}; the file is damaged, download or convert it again")

    def need(self, length: int, what: str) -> None:
        if length > self.end - self.position:
            limit = "the end of the file" if self.end == len(self.buffer) else f"{MAX_HEADER >> 20} MB"
            raise self.fail(f"{what} runs past {limit}")

    def scalar(self, form: struct.Struct, what: str):
        self.need(form.size, what)
        (value,) = form.unpack_from(self.buffer, self.position)
        self.position += form.size
        return value

    def count(self, least_bytes: int, what: str) -> int:
        """A number of entries that take at least `least_bytes` each."""
        count = self.scalar(_U64, what)
        self.need(count * least_bytes, f"{what} ({count})")
        return count

    def strings(self, count: int, what: str, limit: int = MAX_HEADER) -> list[str]:
        # The hot loop: 300,000 strings in a full-size file. Locals instead of the methods above.
        buffer, position, end, unpack = self.buffer, self.position, self.end, _U64.unpack_from
        out = []
        try:
            for _ in range(count):
                if end - position < 8:
                    break
                (length,) = unpack(buffer, position)
                position += 8
                if length > end - position or length > limit:
                    break
                out.append(buffer[position:position + length].decode("utf-8"))
                position += length
        except UnicodeDecodeError:
            raise self.fail(f"{what} holds text that is not UTF-8") from None
        if len(out) < count:
            raise self.fail(f"{what} holds a string that is too long for the file")
        self.position = position
        return out

    def string(self, what: str, limit: int = MAX_HEADER) -> str:
        return self.strings(1, what, limit)[0]

    def value_type(self, what: str) -> GGUFValueType:
        number = self.scalar(_U32, what)
        try:
            return GGUFValueType(number)
        except ValueError:
            raise self.fail(f"{what} has the unknown value type {number}") from None

    def value(self, key: str):
        what = f"metadata key {key!r}"
        kind = self.value_type(what)
        if kind == GGUFValueType.STRING:
            return self.string(what)
        if kind != GGUFValueType.ARRAY:
            return self.scalar(_SCALARS[kind], what)
        kind = self.value_type(what)
        if kind == GGUFValueType.ARRAY:
            raise self.fail(f"{what} is an array of arrays, which no known model has")
        if kind == GGUFValueType.STRING:
            return self.strings(self.count(8, what), what)
        form = _SCALARS[kind]
        count = self.count(form.size, what)
        dtype = np.dtype(np.uint8) if kind == GGUFValueType.BOOL else np.dtype(form.format)
        numbers = np.frombuffer(self.buffer, dtype, count, self.position).astype(
            bool if kind == GGUFValueType.BOOL else dtype.newbyteorder("="))
        self.position += count * form.size
        return numbers


def read_header(buffer: mmap.mmap, path: Path) -> Header:
    """Walk the header of a mapped file and check the tensor directory against the file's size.

    Raises `ModelFileError` saying what is wrong and, where there is one, which key or tensor it concerns.
    """
    check_magic(bytes(buffer[:64]), path)
    cursor = _Cursor(buffer, path)
    cursor.position = 4
    version = cursor.scalar(_U32, "the version")
    if version and not version & 0xFFFF:
        raise ModelFileError(f"{path}: a big-endian GGUF file; only little-endian files are read")
    if version not in VERSIONS:
        raise ModelFileError(f"{path}: GGUF version {version} is not supported, only 2 and 3 are; convert it again")
    tensor_count = cursor.count(24, "the tensor count")
    key_count = cursor.count(13, "the number of metadata keys")
    metadata: dict[str, Any] = {}
    for _ in range(key_count):
        key = cursor.string("a metadata key", MAX_NAME)
        if key in metadata:
            raise cursor.fail(f"metadata key {key!r} is there twice")
        metadata[key] = cursor.value(key)
    alignment = metadata.get("general.alignment", gguf.GGUF_DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1) or alignment > MAX_HEADER:
        raise cursor.fail(f"general.alignment is {alignment!r}, not a power of two")
    entries = [_tensor_entry(cursor) for _ in range(tensor_count)]
    start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for name, shape, kind, offset in entries:
        if name in tensors:
            raise cursor.fail(f"tensor {name!r} is there twice")
        if offset % alignment:
            raise cursor.fail(f"tensor {name!r} starts at a byte that is not a multiple of {alignment}")
        tensors[name] = _checked_tensor(name, shape, kind, start + offset, cursor)
    _check_overlap(tensors, cursor)
    return Header(version, metadata, tensors)


def check_magic(start: bytes, path: Path) -> None:
    """Refuse what is no GGUF file, with a guess at what it is instead. Raises `ModelFileError`."""
    if start[:4] == b"GGUF":
        return
    if not start:
        raise ModelFileError(f"{path}: the file is empty; download it again")
    hint = "give the path of a .gguf file"
    if start.startswith(b"version https://git-lfs"):
        hint = "it is a Git LFS pointer, not the model itself: fetch the model with `git lfs pull`"
    elif start.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"<":
        hint = "it is a web page: download the file itself, not the page about it"
    elif len(start) > 8 and start[8:9] == b"{":
        hint = "it looks like a safetensors file: `tts convert` makes GGUF files from a checkpoint folder"
    elif start[:4] == b"FUGG":
        hint = "its bytes are swapped; only little-endian files are read"
    raise ModelFileError(f"{path}: not a GGUF file (starts with {start[:4]!r}); {hint}")


def _tensor_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string("a tensor name", MAX_NAME)
    what = f"tensor {name!r}"
    dimensions = cursor.scalar(_U32, what)
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise cursor.fail(f"{what} has {dimensions} dimensions, not 1 to {MAX_DIMENSIONS}")
    shape = tuple(cursor.scalar(_U64, what) for _ in range(dimensions))[::-1]
    return name, shape, cursor.scalar(_U32, what), cursor.scalar(_U64, what)


def _checked_tensor(name: str, shape: tuple[int, ...], number: int, offset: int, cursor: _Cursor) -> TensorInfo:
    try:
        kind = GGMLQuantizationType(number)
        known = can_dequantise(kind)
    except (ValueError, KeyError):
        kind, known = f"number {number}", False
    if not known:
        raise ModelFileError(f"{cursor.path}: tensor {name!r} has the type {getattr(kind, 'name', kind)}, which cannot "
                             "be read; convert the model to a usual type such as q8_0")
    if 0 in shape:
        raise cursor.fail(f"tensor {name!r} has the empty shape {list(shape)}")
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    if shape[-1] % block:
        raise cursor.fail(f"tensor {name!r} has rows of {shape[-1]} values, not a multiple of {block} as "
                          f"{kind.name} needs")
    nbytes = math.prod(shape) // block * block_bytes
    if offset + nbytes > len(cursor.buffer):
        raise cursor.fail(f"tensor {name!r} ends at byte {offset + nbytes}, but the file has {len(cursor.buffer)} "
                          "bytes")
    return TensorInfo(name, shape, kind, offset, nbytes)


def _check_overlap(tensors: dict[str, TensorInfo], cursor: _Cursor) -> None:
    end, before = 0, ""
    for info in sorted(tensors.values(), key=lambda t: t.offset):
        if info.offset < end:
            raise cursor.fail(f"tensors {before!r} and {info.name!r} overlap")
        end, before = info.offset + info.nbytes, info.name
