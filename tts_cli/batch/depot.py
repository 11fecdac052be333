"""Where whole audio files go: the folder of the batch, any URL that fsspec knows, or back to whoever asked for the row.

A file is made under a temporary name in `work` and put when it is whole.
"""

import os
import secrets
import tempfile
from pathlib import Path
from typing import Protocol

from tts_cli.batch.store import WORK, put_in_folder
from tts_cli.errors import UsageError


class Depot(Protocol):
    work: Path

    def put(self, path: Path, name: str) -> tuple[str, bytes | None]:
        """Move a whole file there: (what the results call it, its bytes where they are still to be written)."""


class Folder:
    """The folder of the batch, on this machine."""

    def __init__(self, folder: Path):
        self._folder, self.work = folder, folder / WORK

    def put(self, path: Path, name: str) -> tuple[str, None]:
        put_in_folder(path, self._folder, name)
        return name, None


class Url:
    """A place that every worker reaches: `s3://bucket/voices`, or the path of a shared folder.

    Object stores show a file when it was sent whole; in a folder it is renamed. Raises `UsageError` for a URL that
    fsspec does not know or whose package is missing.
    """

    def __init__(self, url: str):
        import fsspec

        try:
            self._files, self._root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise UsageError(f"--audio-to {url}: {error}") from None
        self._url = url.rstrip("/")
        self._local = isinstance(self._files, fsspec.get_filesystem_class("file"))
        self._temporary = tempfile.TemporaryDirectory(prefix="tts-batch-")
        self.work = Path(self._temporary.name)
        self._files.makedirs(self._root, exist_ok=True)

    def put(self, path: Path, name: str) -> tuple[str, None]:
        target = f"{self._root}/{name}"
        arriving = f"{self._root}/.tts-{secrets.token_hex(8)}.part" if self._local else target
        try:
            self._files.put_file(str(path), arriving)
            if self._local:
                os.replace(arriving, target)
        finally:
            path.unlink()
        return f"{self._url}/{name}", None


class Carried:
    """Nowhere: the bytes go back with the outcome."""

    def __init__(self):
        self._temporary = tempfile.TemporaryDirectory(prefix="tts-batch-")
        self.work = Path(self._temporary.name)

    def put(self, path: Path, name: str) -> tuple[str, bytes]:
        data = path.read_bytes()
        path.unlink()
        return name, data


def open_depot(where: str | Path | None) -> Depot:
    """A path object is the batch's own folder, text a URL or shared folder, None carries the bytes back."""
    if where is None:
        return Carried()
    return Folder(where) if isinstance(where, Path) else Url(where)
