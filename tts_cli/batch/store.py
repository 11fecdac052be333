"""What a batch leaves behind: audio files that are whole or not there, and `results.jsonl`, a line for every row.

A line is appended, flushed and synced when its file has its name, so that whatever ends the process costs at most the
rows in work. The next run begins by reading the lines, a torn last one left out, and drops those of rows that will be
spoken again: no row has two.
"""

import contextlib
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tts_cli.audio import shown
from tts_cli.cli.files import whole_file
from tts_cli.errors import TtsError, UsageError

RESULTS = "results.jsonl"
WORK = ".tts-batch"  # inside the folder of the batch, for files that are not whole yet
_BLOCK = 1 << 20


@dataclass(frozen=True)
class _Last:
    """What the last line of a row says, and where it is."""

    key: bytes
    offset: int
    finished: bool
    attempts: int


class Store:
    """The folder of a batch, held by one process at a time; a context manager. Made when missing.

    remote   audio lies elsewhere: that a file is still there is not asked

    Raises `TtsError` when the folder cannot be written, `UsageError` when another process has it.
    """

    def __init__(self, folder: str | Path, *, remote: bool = False):
        self.folder = Path(folder)
        self._path = self.folder / RESULTS
        self._remote = remote
        with _reported(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a+b")
        try:
            _lock(self._file, self.folder)
            with _reported(self.folder):
                shutil.rmtree(self.work, ignore_errors=True)  # of a run that was killed
                self.work.mkdir()
                self._last = self._read()
        except BaseException:
            self._file.close()
            raise
        self._stale: set[bytes] = set()

    @property
    def work(self) -> Path:
        return self.folder / WORK

    def is_finished(self, row) -> bool:
        """Whether a row was spoken before, with the same text and options, and its file is there."""
        last = self._last.get(name_digest(row.id))
        return (last is not None and last.finished and last.key == bytes.fromhex(row.key)
                and (self._remote or (self.folder / row.file).is_file()))

    def attempts(self, row) -> int:
        """How often it was spoken before and cut at the automatic limit: these seeds need not be tried again."""
        last = self._last.get(name_digest(row.id))
        return 0 if last is None or last.finished or last.key != bytes.fromhex(row.key) else last.attempts

    def forget(self, row) -> None:
        """It will be spoken again: `tidy` drops its line."""
        if (digest := name_digest(row.id)) in self._last:
            self._stale.add(digest)

    def tidy(self) -> None:
        """Leave the one line of every row that is finished, before anything is replaced. Raises `TtsError`."""
        with _reported(self._path):
            self._file.seek(0)
            kept = {last.offset for digest, last in self._last.items() if digest not in self._stale}
            if len(kept) == sum(1 for _ in self._file):
                return
            with whole_file(self._path) as target:
                for offset, line in self._lines():
                    if offset in kept:
                        target.write(line)
                target.flush()
                os.fsync(target.fileno())
            file = self._path.open("a+b")
            _lock(file, self.folder)
            self._file.close()
            self._file = file

    def add(self, record: dict) -> None:
        """Append the line of a row. Raises `TtsError`."""
        with _reported(self._path):
            self._file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())

    def take(self, name: str, data: bytes) -> None:
        """Write a file that was made elsewhere. Raises `TtsError`."""
        with _reported(self.folder / name):
            temporary = self.work / secrets.token_hex(8)
            temporary.write_bytes(data)
            put_in_folder(temporary, self.folder, name)

    def records(self) -> "Records":
        """The lines by the rows' ids, as they are now."""
        return Records(self._path)

    def close(self) -> None:
        shutil.rmtree(self.work, ignore_errors=True)
        self._file.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def _read(self) -> dict[bytes, _Last]:
        last = {}
        for offset, line in self._lines():
            record = _record(line)
            if record is not None:
                last[name_digest(record["id"])] = _Last(
                    bytes.fromhex(record["key"]), offset, record["error"] is None,
                    record["attempts"] if record["finish_reason"] == "limit" else 0)
        return last

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        return _lines(self._file)


class Records:
    """The lines of `results.jsonl`, found by id; only their places are kept in memory."""

    def __init__(self, path: Path):
        self._file = path.open("rb")
        self._offsets = {name_digest(record["id"]): offset for offset, line in _lines(self._file)
                         if (record := _record(line)) is not None}

    def get(self, identity: str) -> dict | None:
        offset = self._offsets.get(name_digest(identity))
        if offset is None:
            return None
        self._file.seek(offset)
        return json.loads(self._file.readline())

    def __enter__(self) -> "Records":
        return self

    def __exit__(self, *exception) -> None:
        self._file.close()


def name_digest(identity: str) -> bytes:
    """The same for names that some file system takes for one: other case, other composition of accents."""
    import unicodedata

    return hashlib.blake2b(unicodedata.normalize("NFC", identity).casefold().encode(), digest_size=16).digest()


def put_in_folder(path: Path, folder: Path, name: str) -> None:
    """Give a whole file on the same file system its name."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(path, folder / name)


def file_sha256(path: str | Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """(offset, line) of the complete lines."""
    file.seek(0)
    offset = 0
    for line in file:
        if line.endswith(b"\n"):
            yield offset, line
        offset += len(line)


def _record(line: bytes) -> dict | None:
    """None for a line that is damaged; its row is spoken again."""
    try:
        record = json.loads(line)
        bytes.fromhex(record["key"])
        return record if {"id", "error", "attempts", "finish_reason"} <= record.keys() else None
    except (ValueError, TypeError, KeyError):
        return None


def _lock(file: BinaryIO, folder: Path) -> None:
    """Hold the file while it is open. Where the system has no such locks nothing is done."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(
            f"{shown(folder)}: another tts batch is at work there; wait for it, or give another -o") from None
    except OSError:
        pass  # a file system without locks


@contextlib.contextmanager
def _reported(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TtsError(f"cannot write {shown(path)}: {error.strerror or error}") from error
