"""Files that are there whole or not at all."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tts_cli.audio import shown
from tts_cli.errors import TtsError


@contextlib.contextmanager
def whole_file(path: str | Path) -> Iterator[BinaryIO]:
    """A binary file that appears under `path` only when the block ended well, in place of an older one.

    A link is followed and stays; a pipe or device is written directly. Raises `TtsError` naming the path.
    """
    target = Path(os.path.realpath(path))
    special = target.exists() and not target.is_file()
    temporary = target if special else target.parent / f".tts-{secrets.token_hex(8)}.part"
    try:
        with temporary.open("wb" if special else "xb") as file:
            yield file
        if not special:
            os.replace(temporary, target)
    except BaseException as error:
        if not special:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise TtsError(f"cannot write {shown(path)}: {error.strerror or error}") from error
        raise
