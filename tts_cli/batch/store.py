"""What a batch leaves behind: audio files that are whole or not there, and `results.jsonl`, a line for every row.

A line is appended, flushed and synced when its file has its name, so that whatever ends the process costs at most the
rows in work. The next run begins by reading the lines, a torn last one left out, and drops those of rows that will be
spoken again, with their files: no row has two lines, and no file speaks another text than the manifest's.
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
from tts_cli.errors import TtsError, UsageError

RESULTS = "results.jsonl"
WORK = ".tts-batch"  # inside the folder of the batch, for files that are not whole yet


@dataclass(frozen=True)
class _Last:
    """What the last line of a row says, and where it is. `finished`: without an error, its file where files go now."""

    key: bytes
    offset: int
    finished: bool
    attempts: int


class Store:
    """The folder of a batch, held by one process at a time; a context manager. Made when missing; what was made and has
    nothing in it at the end goes again.

    remote   the URL or folder where audio lies instead: that a file is still there is not asked

    Raises `TtsError` when the folder cannot be written, `UsageError` when another process has it.
    """

    def __init__(self, folder: str | Path, *, remote: str | None = None):
        self.folder = Path(folder)
        self._path = self.folder / RESULTS
        self._remote = None if remote is None else remote.rstrip("/")
        with _reported(self.folder):
            if self.folder.exists() and not self.folder.is_dir():
                raise OSError("it is there already, and no folder")
            self._made = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
            self.folder.mkdir(parents=True, exist_ok=True)
        with _reported(self._path):
            if self._path.exists() and not self._path.is_file():
                raise OSError("it is there already, and no file")
            self._is_new = not self._path.exists()
            self._file = self._path.open("a+b")
        try:
            _lock(self._file, self.folder)
            with _reported(self.folder):
                if not os.path.samestat(os.fstat(self._file.fileno()), os.stat(self._path)):
                    raise _taken(self.folder)  # its holder has put another one in its place meanwhile
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
                and (self._remote is not None or (self.folder / row.file).is_file()))

    def attempts(self, row) -> int:
        """How often it was spoken before and cut at the automatic limit: these seeds need not be tried again."""
        last = self._last.get(name_digest(row.id))
        return 0 if last is None or last.finished or last.key != bytes.fromhex(row.key) else last.attempts

    def forget(self, row) -> None:
        """It will be spoken again: `tidy` drops its line and its file."""
        if (digest := name_digest(row.id)) in self._last:
            self._stale.add(digest)

    def tidy(self) -> None:
        """Leave the one line of every row that is finished, before anything is spoken. Raises `TtsError`."""
        with _reported(self._path):
            self._file.seek(0)
            kept = {last.offset for digest, last in self._last.items() if digest not in self._stale}
            if len(kept) == sum(1 for _ in self._file):
                return
            fresh = (self.work / RESULTS).open("a+b")
            try:
                _lock(fresh, self.folder)  # before anybody else can find it
                for offset, line in _lines(self._file):
                    if offset in kept:
                        fresh.write(line)
                    else:
                        self._remove_file_of(line)
                fresh.flush()
                os.fsync(fresh.fileno())
                self._replace(fresh)
            except BaseException:
                fresh.close()
                raise

    def _replace(self, fresh: BinaryIO) -> None:
        if os.name != "nt":
            os.replace(fresh.name, self._path)
            self._file.close()
            self._file = fresh
        else:  # which renames no open file
            fresh.close()
            self._file.close()
            os.replace(fresh.name, self._path)
            self._file = self._path.open("a+b")

    def _remove_file_of(self, line: bytes) -> None:
        """A text that was spoken before under an id is not to stand for the one that is spoken now."""
        record = _record(line)
        if record is None or record["file"] is None or name_digest(record["id"]) not in self._stale:
            return
        if self._remote is None and Path(record["file"]).name == record["file"]:
            (self.folder / record["file"]).unlink(missing_ok=True)

    def add(self, record: dict) -> None:
        """Append the line of a row. Raises `TtsError`."""
        with _reported(self._path):
            # Half a surrogate pair, which has no bytes, becomes its escape.
            self._file.write(json.dumps(record, ensure_ascii=False).encode(errors="backslashreplace") + b"\n")
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
        is_empty = self._is_new and os.fstat(self._file.fileno()).st_size == 0
        if os.name == "nt":  # which removes no open file
            self._file.close()
        if is_empty:
            with contextlib.suppress(OSError):  # else while it is locked: nobody can have begun to write there
                self._path.unlink()
                for folder in self._made:
                    folder.rmdir()
        self._file.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def _read(self) -> dict[bytes, _Last]:
        last = {}
        for offset, line in _lines(self._file):
            record = _record(line)
            if record is not None:
                last[name_digest(record["id"])] = _Last(
                    bytes.fromhex(record["key"]), offset, record["error"] is None and self._is_here(record["file"]),
                    record["attempts"] if record["finish_reason"] == "limit" else 0)
        return last

    def _is_here(self, file: str | None) -> bool:
        """Whether it lies where files go now, rather than where an earlier run had them."""
        return file is not None and file.rpartition("/")[0] == (self._remote or "")


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
    """The same for names that some file system takes for one: other case, other composition of accents.

    That is Unicode's canonical caseless match (definition D145); where nothing is folded a few refused names would do.
    """
    import unicodedata

    folded = unicodedata.normalize("NFD", unicodedata.normalize("NFD", identity).casefold())
    return hashlib.blake2b(folded.encode(errors="surrogatepass"), digest_size=16).digest()


def put_in_folder(path: Path, folder: Path, name: str) -> None:
    """Give a whole file on the same file system its name."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(path, folder / name)


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
        whole = (isinstance(record["id"], str) and isinstance(record["attempts"], int) and record["attempts"] > 0
                 and {"error", "finish_reason"} <= record.keys()
                 and (record["file"] is None or isinstance(record["file"], str) and isinstance(record["cues"], list)))
        return record if whole else None
    except (ValueError, TypeError, KeyError, RecursionError):
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
        raise _taken(folder) from None
    except OSError:
        pass  # a file system without locks


def _taken(folder: Path) -> UsageError:
    return UsageError(f"{shown(folder)}: another tts batch is at work there; wait for it, or give another -o")


@contextlib.contextmanager
def _reported(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TtsError(f"cannot write {shown(path)}: {error.strerror or error}") from error
