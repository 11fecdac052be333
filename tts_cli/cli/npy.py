"""Codes from a .npy file that anybody may have written: nothing of it is evaluated, and no claim in it costs memory.

Layout: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

import re
import struct
from pathlib import Path

from tts_cli.audio import shown
from tts_cli.errors import UsageError

BOOKS, BOOK_SIZE = 16, 2048
MAX_HEADER = 1 << 16  # bytes; a header of codes takes 118
MAX_BYTES = 64 << 20  # 9 hours of speech as int64

_KIND = re.compile(rb"'descr'\s*:\s*'([^'\\]{1,16})'")
_ORDER = re.compile(rb"'fortran_order'\s*:\s*(True|False)\b")
_SHAPE = re.compile(rb"'shape'\s*:\s*\(([0-9, ]*)\)")


def read_codes(path: Path):
    """int32 [frames, 16] from a .npy file. Raises `UsageError` naming what does not fit."""
    import numpy as np

    name = shown(path)
    try:
        with path.open("rb") as file:
            kind, shape, order = _header(file, name)
            size = kind.itemsize * shape[0] * BOOKS
            if size > MAX_BYTES:
                raise UsageError(f"{name} claims {shape[0]} frames, which are more than {MAX_BYTES >> 20} MiB")
            data = file.read(size)
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror or error}; give the file --dump-codes wrote") from None
    if len(data) < size:
        raise UsageError(f"{name} is cut short: {len(data)} of {size} bytes of codes are there")
    array = np.frombuffer(data, kind).reshape(shape, order=order)
    if array.min() < 0 or array.max() >= BOOK_SIZE:
        raise UsageError(f"{name} holds values from {array.min()} to {array.max()}; codes are 0 to {BOOK_SIZE - 1}")
    return array.astype(np.int32)


def _header(file, name: str):
    """Dtype, shape (frames, 16) and order, "C" or "F"."""
    import numpy as np

    start = file.read(8)
    if start[:2] == b"PK":
        raise UsageError(f"{name} is an archive (.npz or .zip), not a .npy file; give the file --dump-codes wrote")
    form = {1: "<H", 2: "<I", 3: "<I"}.get(start[6] if start[:6] == b"\x93NUMPY" and len(start) == 8 else 0)
    length = file.read(struct.calcsize(form)) if form else b""
    if not form or len(length) < struct.calcsize(form):
        raise _not_numbers(name)
    (length,) = struct.unpack(form, length)
    header = file.read(length) if length <= MAX_HEADER else b""
    kind, order, shape = (pattern.search(header) for pattern in (_KIND, _ORDER, _SHAPE))
    if len(header) < length or not (kind and order and shape):
        raise _not_numbers(name)
    try:
        kind = np.dtype(kind[1].decode("ascii"))
        shape = tuple(int(part) for part in shape[1].split(b",") if part.strip())
    except (TypeError, ValueError, UnicodeDecodeError):
        raise _not_numbers(name) from None
    if kind.hasobject:
        raise _not_numbers(name)
    if kind.kind not in "iu" or len(shape) != 2 or shape[1] != BOOKS:
        raise UsageError(f"{name} holds {kind} {list(shape)}; codes are integers of shape [frames, {BOOKS}]")
    if not shape[0]:
        raise UsageError(f"{name} holds no frames")
    return kind, shape, "F" if order[1] == b"True" else "C"


def _not_numbers(name: str) -> UsageError:
    return UsageError(f"{name} is not a .npy file of numbers; give the file --dump-codes wrote")
