"""Files that are there whole or not at all."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def whole_file(path: str | Path) -> Iterator[BinaryIO]:
    """A binary file that appears under `path` only when the block ended well, in place of an older one."""
    target = Path(path)
    temporary = target.parent / f".tts-{secrets.token_hex(8)}.part"
    try:
        with temporary.open("xb") as file:
            yield file
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
