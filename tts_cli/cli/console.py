"""What people read, on stderr; standard output is for audio, tables and JSON."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

from tts_cli.cli.process import forget
from tts_cli.notices import Notices


class Console(Notices):
    """Notes, warnings and the progress line, as quiet or as talkative as asked."""

    def __init__(self, quiet: bool = False, verbose: bool = False):
        self.quiet = quiet
        self.verbose = verbose and not quiet

    def note(self, message: str) -> None:
        if not self.quiet:
            tell(message)

    def detail(self, message: str) -> None:
        if self.verbose:
            tell(message)

    def warning(self, message: str) -> None:
        self.note(f"tts: warning: {message}")

    @property
    def shows_progress(self) -> bool:
        return not self.quiet and sys.stderr.isatty()

    def audio_progress(self):
        """A context manager whose `advance(seconds of audio, number of the utterance)` redraws one line; silent unless
        stderr is a terminal."""
        return _AudioProgress(self.shows_progress)

    def byte_progress(self, label: str):
        """A `progress(bytes done, bytes in all, tensor)` callback with a bar; silent unless stderr is a terminal."""
        return _ByteProgress(label, self.shows_progress)

    def preparation(self, label: str):
        """A `progress(done, total, what)` callback like that of `byte_progress` for work that begins when it is first
        called; the bar goes when all is done."""
        bar = self.byte_progress(label)

        def progress(done: int, total: int, what: str) -> None:
            bar(done, total, what)
            if done >= total:
                bar.__exit__(None, None, None)

        return progress


def tell(message: str) -> None:
    """A line on stderr. Where it cannot be written (a full disk, a terminal that is gone) the work still counts."""
    try:
        print(message, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        forget(sys.stderr)


def error_line(message: object) -> None:
    """One line for an error, whatever line breaks the message holds."""
    tell(f"tts: error: {' '.join(str(message).split())}")


@contextlib.contextmanager
def one_interrupt() -> Iterator[None]:
    """The first Ctrl-C raises `KeyboardInterrupt`; later ones are ignored, so that they cannot cut short the cleaning
    up, which takes milliseconds."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupted(number, frame):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background of a script
        yield
        return
    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _size() -> dict[str, int]:
    """A usual size for a terminal that does not know its own and says 0, where tqdm would show nothing."""
    try:
        return {} if os.get_terminal_size(sys.stderr.fileno()).columns else {"ncols": 80, "nrows": 24}
    except (OSError, ValueError):
        return {}


class _AudioProgress:
    def __init__(self, shown: bool):
        self._shown = shown
        self._utterance = 1

    def __enter__(self):
        from tqdm import tqdm

        self._started = time.perf_counter()
        self._bar = tqdm(disable=not self._shown, file=sys.stderr, leave=False, mininterval=0.2, **_size(),
                         bar_format="{desc}{n:.1f} s of audio in {elapsed}{postfix}")
        return self

    def advance(self, seconds: float, utterance: int = 1) -> None:
        if self._shown:
            if utterance > self._utterance:
                self._utterance = utterance
                self._bar.set_description_str(f"utterance {utterance}: ")
            wall = time.perf_counter() - self._started
            self._bar.set_postfix_str(f"{(self._bar.n + seconds) / max(wall, 1e-9):.2f} x real time", refresh=False)
            self._bar.update(seconds)

    def __exit__(self, *exception):
        self._bar.close()


class _ByteProgress:
    def __init__(self, label: str, shown: bool):
        self._label = label
        self._shown = shown
        self._bar = None

    def __enter__(self):
        return self

    def __call__(self, done: int, total: int, name: str) -> None:
        from tqdm import tqdm

        if self._bar is None:
            self._bar = tqdm(total=total, disable=not self._shown, file=sys.stderr, leave=False, desc=self._label,
                             unit="B", unit_scale=True, **_size())
        self._bar.update(done - self._bar.n)

    def __exit__(self, *exception):
        if self._bar is not None:
            self._bar.close()
