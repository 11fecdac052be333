"""Write a GGUF file tensor by tensor: the header first, then each tensor in blocks of rows.

Nothing larger than one block is held, so a model of any size is written in little memory. The file appears under
its own name only when the caller renames it: see `replace_when_complete`.
"""

import contextlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType

from tts_cli.errors import ModelFileError, TtsError

Progress = Callable[[int, int, str], None]  # bytes written, bytes in all, tensor name


def _quantisable() -> dict[str, GGMLQuantizationType]:
    """The types the installed gguf package can make, by lower-case name, F32 first."""
    types = {}
    for kind in GGMLQuantizationType:
        if _file_type(kind) is None:
            continue
        with contextlib.suppress(NotImplementedError):
            gguf.quants.quantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][0]), np.float32), kind)
            types[kind.name.lower()] = kind
    return types


def _file_type(kind: GGMLQuantizationType) -> int | None:
    """`general.file_type` of a file whose matrices are of this type; None when GGUF has no number for it."""
    names = (f"ALL_{kind.name}", f"MOSTLY_{kind.name}", f"MOSTLY_{kind.name}_MOE")
    return next((int(t) for t in gguf.LlamaFileType if t.name in names), None)


TYPES = _quantisable()
FILE_TYPES = {name: _file_type(kind) for name, kind in TYPES.items()}


@dataclass(frozen=True)
class KeyValue:
    """One metadata entry. Arrays take their element type from `items`."""

    key: str
    value: Any
    type: GGUFValueType
    items: GGUFValueType | None = None


@dataclass(frozen=True)
class OutputTensor:
    """A tensor to be written: `blocks()` yields its float32 rows in order, any number of whole rows at a time."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    blocks: Callable[[], Iterable[np.ndarray]] = field(repr=False)

    @property
    def nbytes(self) -> int:
        per_block, block_bytes = gguf.GGML_QUANT_SIZES[self.type]
        return math.prod(self.shape) // per_block * block_bytes


def stored_type(shape: Sequence[int], wanted: GGMLQuantizationType) -> GGMLQuantizationType:
    """`wanted`, or F16 where the rows cannot be cut into its blocks; vectors are always F32."""
    if len(shape) < 2:
        return GGMLQuantizationType.F32
    return wanted if shape[-1] % gguf.GGML_QUANT_SIZES[wanted][0] == 0 else GGMLQuantizationType.F16


def encode(name: str, rows: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    """float32 rows [..., ne0] to the bytes of `kind`. Raises `ModelFileError` for values `kind` cannot hold."""
    rows = np.ascontiguousarray(rows, dtype=np.float32)
    if not np.isfinite(rows).all():
        raise ModelFileError(f"tensor {name} holds values that are not finite numbers: the checkpoint is damaged")
    if kind == GGMLQuantizationType.F16 and rows.size and np.abs(rows).max() >= 65520:
        raise ModelFileError(f"tensor {name} holds values too large for F16; use --type bf16 or f32")
    return np.ascontiguousarray(gguf.quants.quantize(rows, kind))


def write_gguf(path: Path, architecture: str, metadata: Sequence[KeyValue], tensors: Sequence[OutputTensor],
               progress: Callable[[int, str], None] | None = None) -> None:
    """Write a complete file at `path`; `progress` hears the bytes of each block and its tensor's name.

    Raises `ModelFileError` for values that cannot be stored and `OSError` from the file system.
    """
    writer = gguf.GGUFWriter(path, architecture)
    for entry in metadata:
        writer.add_key_value(entry.key, entry.value, entry.type, sub_type=entry.items)
    for tensor in tensors:
        writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), tensor.nbytes, raw_dtype=tensor.type)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        out = writer.fout[0]
        writer.write_padding(out, out.tell())
        for tensor in tensors:
            written = 0
            for rows in tensor.blocks():
                data = encode(tensor.name, rows, tensor.type)
                out.write(data.data)
                written += data.nbytes
                if progress:
                    progress(data.nbytes, tensor.name)
            if written != tensor.nbytes:
                raise ValueError(f"{tensor.name}: {written} bytes instead of the {tensor.nbytes} in the header")
            writer.write_padding(out, written)
    finally:
        writer.close()


@contextlib.contextmanager
def replace_when_complete(*paths: Path) -> Iterator[list[Path]]:
    """Temporary names beside `paths`, renamed to them together when the body ends well and removed otherwise.

    Raises `TtsError` in place of any `OSError`.
    """
    temporary = [path.with_name(f".{path.name}.{os.getpid()}.part") for path in paths]
    try:
        yield temporary
        for part, path in zip(temporary, paths, strict=True):
            os.replace(part, path)
    except OSError as error:
        raise TtsError(f"cannot write {error.filename or paths[0]}: {error.strerror or error}") from error
    finally:
        for part in temporary:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
