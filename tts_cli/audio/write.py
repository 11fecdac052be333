"""Speech to a file or a pipe: the format from the name, a temporary file until it is whole, one line when it fails."""

import errno
import os
import secrets
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np

from tts_cli.audio import shown
from tts_cli.audio.encode import EXTENSIONS, FORMATS, PcmEncoder, SndfileEncoder
from tts_cli.errors import TtsError, UsageError


class ClosedPipe(TtsError):
    """The reader of the pipe went away (`| head`): nobody is left to hear more, so the caller may end quietly."""


def choose_format(path: str | Path, format: str | None = None) -> str:
    """Name of the format (a key of `FORMATS`) for an output path, by its extension in any case or by `format`.

    "-" (standard output) and pipes or devices without an extension default to WAV. Raises `UsageError` for an unknown
    format, an unknown or missing extension, a format that contradicts the extension and one that cannot be piped;
    `TtsError` for a folder.
    """
    path = os.fspath(path)
    if format is not None and format not in FORMATS:
        raise UsageError(f"format {format!r} is unknown, choose one of {', '.join(FORMATS)}")
    piped = path == "-" or _is_special(path)
    extension = Path(path).suffix.lower()
    if piped and (path == "-" or extension not in EXTENSIONS):
        return _streamable(format or "wav", path)
    _check_names_a_file(path)
    if not extension:
        if os.path.isdir(path):
            raise _is_a_folder(path)
        if format is None:
            raise UsageError(f"{shown(path)}: the name needs an extension, one of {' '.join(EXTENSIONS)}")
        return format
    if extension not in EXTENSIONS:
        raise UsageError(f"{shown(path)}: unknown extension {extension!r}, choose one of {' '.join(EXTENSIONS)}")
    if format is None:
        format = next(name for name, f in FORMATS.items() if extension in f.extensions)
    elif extension not in FORMATS[format].extensions:
        raise UsageError(f"{shown(path)}: the extension does not fit the format {format!r}, "
                         f"which is written to {' or '.join(FORMATS[format].extensions)}")
    return _streamable(format, path) if piped else format


def check_output(path: str | Path, *, inputs: Sequence[str | Path | int] = ()) -> None:
    """Refuse, before any work is done, an output that could not be written.

    Raises `TtsError` when the folder does not exist or takes no new file, and when the path is a folder or a read-only
    file; `UsageError` when the path is one of `inputs` (paths or open descriptors), empty, a folder that is not there
    (`a.wav/`), or a terminal ("-" with no redirection).
    """
    path = os.fspath(path)
    if path == "-":
        if sys.stdout is not None and sys.stdout.isatty():
            raise UsageError("audio is not written to a terminal: redirect it (> out.wav, | player) or name a file")
        return
    if not path or "\0" in path:
        raise UsageError("the output needs a file name")
    _check_names_a_file(path)
    with _reported(path):
        try:
            state = os.stat(path)
        except FileNotFoundError:
            state = None
    if state is not None and stat.S_ISDIR(state.st_mode):
        raise _is_a_folder(path)
    if state is not None and not stat.S_ISREG(state.st_mode):
        return
    target = Path(os.path.realpath(path))
    if not os.path.isdir(target.parent):
        raise TtsError(f"cannot write {shown(path)}: the folder {shown(target.parent)} does not exist; create it first")
    if state is not None:
        for other in inputs:
            if os.path.exists(other) and os.path.samefile(path, other):
                raise UsageError(f"cannot write {shown(path)}: it is also an input; choose another output name")
        # The mode as well: an administrator may write any file, and renaming over one needs no right to it.
        if not os.access(path, os.W_OK) or not state.st_mode & 0o222:
            raise TtsError(f"cannot write {shown(path)}: the file is read-only")
    with _reported(path):  # asking the folder itself is the one test that holds for every system and file system
        probe, file = _create_temp(target.parent)
        file.close()
        probe.unlink()


def open_writer(path: str | Path, format: str, sample_rate: int) -> "AudioWriter":
    """Open an output for mono float samples: `with open_writer(path, choose_format(path), rate) as writer`.

    Raises `TtsError` when it cannot be created, `UsageError` when the encoder does not take `sample_rate` Hz.
    """
    return AudioWriter(path, format, sample_rate)


class AudioWriter:
    """An open output. Nothing appears under the final name until `close`; on an exception nothing ever does.

    Pipes and devices are written directly, each `write` flushed; WAV then starts with the header of a stream of unknown
    length, completed at the end where standard output is a file that can be rewound. That header goes to standard
    output with the first samples, so a run that fails earlier leaves it empty.
    Every failure of the system (disk full, folder gone) is a `TtsError`; a closed pipe is `ClosedPipe`.
    """

    def __init__(self, path: str | Path, format: str, sample_rate: int):
        self.path = os.fspath(path)
        self.samples = 0  # written so far
        spec = FORMATS[format]
        self._temp: Path | None = None
        self._target: Path | None = None
        self._encoder = None
        self._piped = self.path == "-"
        with _reported(self.path):
            if self._piped:
                self._file = _binary_stdout()
            elif _is_special(self.path):
                self._piped = True
                self._file = open(self.path, "wb", buffering=0)  # noqa: SIM115 - closed by close and abort
            else:
                self._target = Path(os.path.realpath(self.path))
                self._temp, self._file = _create_temp(self._target.parent)
        try:
            if spec.streamable:
                exact = _is_rewritable(self._file) if self._piped else True
                self._encoder = PcmEncoder(self._file, spec, sample_rate, exact=exact)
            else:
                self._encoder = SndfileEncoder(self._file, spec, sample_rate)
            if self.path != "-":
                self._run(self._encoder.begin)
        except BaseException:
            self.abort()
            raise

    def write(self, samples: np.ndarray) -> None:
        """Append float samples [n]. Raises `TtsError` when they are not finite or cannot be written."""
        samples = np.asarray(samples, np.float32)
        if not np.isfinite(samples).all():
            raise TtsError(f"cannot write {shown(self.path)}: the samples hold values that are not numbers")
        self._run(self._encoder.write, samples)
        self.samples += len(samples)

    def close(self) -> None:
        """Finish the file and give it its name. Raises `TtsError`; then the output is gone, as after `abort`."""
        try:
            self._run(self._encoder.finish)
            if self.path == "-":
                return
            with _reported(self.path):
                self._file.close()
        except BaseException:
            self.abort()
            raise
        if self._temp is not None:
            try:
                os.replace(self._temp, self._target)
            except OSError as error:  # finished work is not thrown away because a player holds the old file open
                raise TtsError(f"cannot replace {shown(self.path)}: {error.strerror}; the audio is in "
                               f"{shown(self._temp)}") from error

    def abort(self) -> None:
        """Give up: close, and remove what was written to a regular file."""
        if self._encoder is not None:
            self._encoder.abandon()
        if self.path != "-":
            with suppress(OSError):  # what a full disk could not take is no longer wanted
                self._file.close()
        if self._temp is not None:
            with suppress(OSError):
                self._temp.unlink(missing_ok=True)

    def __enter__(self) -> "AudioWriter":
        return self

    def __exit__(self, kind, error, traceback) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _run(self, step, *args) -> None:
        try:
            with _reported(self.path):
                step(*args)
                if self._piped:
                    self._file.flush()
        except ClosedPipe:
            if self.path == "-":
                _discard_stdout()
            raise


@contextmanager
def _reported(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # Windows reports a pipe without a reader as an invalid argument.
        if error.errno == errno.EPIPE or (os.name == "nt" and path == "-" and error.errno == errno.EINVAL):
            raise ClosedPipe("the reader of the output closed it") from error
        raise TtsError(f"cannot write {shown(path)}: {error.strerror or error}") from error


def _create_temp(folder: Path) -> tuple[Path, BinaryIO]:
    """A new file in `folder`, with the permissions any new file gets (tempfile would make it private)."""
    temp = folder / f".tts-{secrets.token_hex(8)}.part"
    return temp, open(temp, "xb")


def _is_special(path: str) -> bool:
    """An existing pipe or device, which is written directly: it has no name to rename to."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _is_rewritable(file: BinaryIO) -> bool:
    """Whether a redirected standard output is a regular file whose start can be written again (`> a.wav`, not `>>`)."""
    try:
        import fcntl  # where it is missing, nothing tells appending apart

        descriptor = file.fileno()
        appending = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND
        return stat.S_ISREG(os.fstat(descriptor).st_mode) and not appending and file.tell() == 0
    except (ImportError, OSError, ValueError):  # also a replaced standard output without a descriptor
        return False


def _check_names_a_file(path: str) -> None:
    # Path and os.path.realpath drop the separator, and would write a file.
    if path.endswith((os.sep, os.altsep or os.sep)) and not os.path.isdir(path):
        raise UsageError(f"{shown(path)}: a name that ends with {path[-1]} is a folder's; name a file")


def _is_a_folder(path: str) -> TtsError:
    return TtsError(f"cannot write {shown(path)}: it is a folder; name a file, such as "
                    f"{shown(Path(path) / 'speech.wav')}")


def _streamable(format: str, path: str) -> str:
    if not FORMATS[format].streamable:
        names = ", ".join(name for name, f in FORMATS.items() if f.streamable)
        where = "a pipe" if path == "-" else shown(path)
        raise UsageError(f"{format} cannot be written to {where}, choose one of {names}")
    return format


def _binary_stdout() -> BinaryIO:
    if sys.stdout is None:
        raise TtsError("there is no standard output to write to; name a file")
    return sys.stdout.buffer  # binary on Windows too: Python opens the standard streams without newline translation


def _discard_stdout() -> None:
    """Point standard output at nothing, or the interpreter's own flush at exit would fail on the closed pipe."""
    with suppress(OSError, ValueError):  # a replaced stdout has no descriptor, and no flush at exit that fails
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
