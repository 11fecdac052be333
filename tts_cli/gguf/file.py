"""An open GGUF file: typed metadata, single rows, and whole tensors streamed into torch tensors."""

import contextlib
import math
import mmap
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType

from tts_cli.errors import ModelFileError, UsageError
from tts_cli.gguf.dequantise import KINDS, dequantise
from tts_cli.gguf.header import Header, TensorInfo, read_header

__all__ = ["REQUIRED", "GGUFFile", "TensorInfo"]

REQUIRED: Any = object()
BLOCK_ELEMENTS = 1 << 20  # per step of `read_into`: 4 MB of float32, a few times that inside dequantisers

_TORCH_TYPES = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}


class GGUFFile:
    """A GGUF file with its header read and checked; tensors are read from the memory map on demand.

    path       as given
    version    of the format, 2 or 3
    metadata   plain Python values; arrays of strings are lists, arrays of numbers NumPy arrays
    tensors    by name, in file order
    """

    def __init__(self, path: Path, mapped: mmap.mmap, header: Header):
        self.path = path
        self.version = header.version
        self.metadata = header.metadata
        self.tensors = header.tensors
        self._map = mapped

    @classmethod
    def open(cls, path: str | Path) -> "GGUFFile":
        """Map the file and read its header; no tensor is read.

        Raises `UsageError` when there is no readable file of that name, `ModelFileError` when it is no GGUF file or
        a damaged one.
        """
        path = Path(path)
        try:
            mode = path.stat().st_mode
            if stat.S_ISDIR(mode):
                raise UsageError(f"{path}: is a folder; give the path of a .gguf file in it")
            if not stat.S_ISREG(mode):
                raise UsageError(f"{path}: is not a regular file; give the path of a .gguf file")
            with path.open("rb") as f:
                if not path.stat().st_size:
                    raise ModelFileError(f"{path}: the file is empty; download it again")
                mapped = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise UsageError(f"{path}: no such file") from None
        except (OSError, ValueError) as e:
            raise UsageError(f"{path}: cannot be read ({getattr(e, 'strerror', None) or e})") from None
        try:
            return cls(path, mapped, read_header(mapped, path))
        except BaseException:
            mapped.close()
            raise

    def close(self) -> None:
        """Unmap the file, at the latest when the last view that `raw` gave is gone. Metadata stays readable."""
        mapped, self._map = self._map, b""
        with contextlib.suppress(BufferError):
            mapped.close()

    def __enter__(self) -> "GGUFFile":
        return self

    def __exit__(self, *exc) -> None:
        self.close()

    @property
    def architecture(self) -> str:
        """`qwen3tts` for a talker, `clip` for an mmproj. Raises `ModelFileError` when the file does not say."""
        return self.get("general.architecture", str)

    def get(self, key: str, kind: type, default: Any = REQUIRED) -> Any:
        """The metadata value of `key` as `kind`: bool, int, float, str, list, or list[one of these].

        An int is taken for a float, nothing else is converted; a float is finite. Raises `ModelFileError` naming
        the file and the key when it is missing and there is no default, or when it is of another kind.
        """
        if key not in self.metadata:
            if default is REQUIRED:
                raise ModelFileError(f"{self.path}: the metadata key {key!r} is missing")
            return default
        value = self.metadata[key]
        if (get_origin(kind) or kind) is list:
            value = value.tolist() if isinstance(value, np.ndarray) else value
            (element,) = get_args(kind) or (object,)
            if isinstance(value, list) and (element is object or all(_is(x, element) for x in value)):
                return [element(x) for x in value] if element is float else list(value)
        elif _is(value, kind):
            return kind(value)
        shown = f"an array of {len(value)}" if isinstance(value, (list, np.ndarray)) else repr(value)
        raise ModelFileError(f"{self.path}: the metadata key {key!r} is {shown[:80]}, not a usable "
                             f"{kind if get_args(kind) else kind.__name__}")

    def tensor(self, name: str, shape: tuple[int | None, ...] | None = None) -> TensorInfo:
        """The tensor's entry. `shape`: what it must be, None in it standing for any length.

        Raises `ModelFileError` when it is missing or of another shape.
        """
        info = self.tensors.get(name)
        if info is None:
            raise ModelFileError(f"{self.path}: the tensor {name!r} is missing")
        if shape is not None and (len(shape) != len(info.shape) or any(
                want not in (None, have) for want, have in zip(shape, info.shape, strict=True))):
            wanted = ", ".join("any" if n is None else str(n) for n in shape)
            raise ModelFileError(f"{self.path}: the tensor {name!r} has the shape {list(info.shape)}, "
                                 f"not [{wanted}]")
        return info

    def rows(self, name: str, index: Sequence[int] | np.ndarray | slice) -> np.ndarray:
        """Some rows of a tensor, float32 [n, last dimension]; only these are read and dequantised.

        Leading dimensions count as one: row r of book b of a [books, R, C] tensor is b * R + r. Raises
        `IndexError` for a row the tensor does not have, `ModelFileError` when there is no such tensor.
        """
        info = self.tensor(name)
        count = math.prod(info.shape[:-1])
        if isinstance(index, slice):
            index = np.arange(*index.indices(count))
        index = np.asarray(index, np.int64).reshape(-1)
        if index.size and not (index.min() >= 0 and index.max() < count):
            raise IndexError(f"rows {index.min()} to {index.max()} of {name!r}, which has {count}")
        raw = self.raw(name)[index]
        if not index.size:
            return np.empty((0, info.shape[-1]), np.float32)
        return _dequantise(raw, info.type)

    def raw(self, name: str) -> np.ndarray:
        """The stored bytes of a tensor, uint8 [rows, bytes per row], read-only and not copied: a view of the map.

        Leading dimensions count as one. Raises `ModelFileError` when there is no such tensor.
        """
        info = self.tensor(name)
        return np.frombuffer(self._map, np.uint8, info.nbytes, info.offset).reshape(math.prod(info.shape[:-1]), -1)

    def read_into(self, name: str, out: torch.Tensor) -> None:
        """Fill `out` with the whole tensor, converted to its dtype, in steps of a few MB.

        `out`: contiguous, floating point, as many elements as the tensor, any shape and device; usual quantised types
        travel as they are and are converted there. The pages of the file are given back behind the reader, so that
        memory grows by no more than `out` itself. Raises `ValueError` for an unsuitable `out`, `ModelFileError` when
        there is no such tensor.
        """
        info = self.tensor(name)
        if out.numel() != math.prod(info.shape) or not out.is_contiguous() or not out.is_floating_point():
            raise ValueError(f"{name!r} needs a contiguous floating-point tensor of {math.prod(info.shape)} elements, "
                             f"got {out.dtype} {list(out.shape)}")
        flat, done = out.detach().view(-1), 0
        for raw in self._blocks(info, pinned=out.is_cuda):
            if info.type in _TORCH_TYPES:
                # Views of the same bytes: no float32 in between when `out` has the file's own type.
                values = raw.to(out.device, non_blocking=True).view(_TORCH_TYPES[info.type])
            elif info.type in KINDS:
                blocks = raw.to(out.device, non_blocking=True).view(-1, gguf.GGML_QUANT_SIZES[info.type][1])
                values = dequantise(blocks, info.type).view(-1)
            else:
                values = torch.from_numpy(_dequantise(raw.numpy()[None], info.type)[0])
            flat[done:done + values.numel()].copy_(values)
            done += values.numel()

    def _blocks(self, info: TensorInfo, pinned: bool) -> Iterator[torch.Tensor]:
        """The tensor's bytes, uint8, in order, as copies of whole quantisation blocks; dropped from the map behind us.

        pinned  in memory that a GPU fetches from by itself, while the next block is read
        """
        block, block_bytes = gguf.GGML_QUANT_SIZES[info.type]
        step = max(1, BLOCK_ELEMENTS // block) * block_bytes
        for start in range(info.offset, info.offset + info.nbytes, step):
            length = min(step, info.offset + info.nbytes - start)
            # A copy, for torch wants writable memory and nothing may hold the map when it is closed.
            raw = torch.empty(length, dtype=torch.uint8, pin_memory=pinned)
            raw.numpy()[:] = np.frombuffer(self._map, np.uint8, length, start)
            self._release(start, length)
            yield raw

    def _release(self, start: int, length: int) -> None:
        if hasattr(mmap, "MADV_DONTNEED"):  # not on Windows, where mapped pages are trimmed under pressure
            page = start - start % mmap.PAGESIZE
            self._map.madvise(mmap.MADV_DONTNEED, page, start + length - page)


def _dequantise(raw: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    """uint8 [n, row bytes] to float32 [n, row length]."""
    with np.errstate(all="ignore"):  # a damaged scale may be infinite: the samples are checked at the end
        return np.ascontiguousarray(gguf.quants.dequantize(raw, kind), np.float32)


def _is(value: Any, kind: type) -> bool:
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
