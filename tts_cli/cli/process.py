"""The process around a run: standard streams that are closed, and the signals that end it.

Whatever ends a run has to pass through the code that removes unfinished files, so signals become exceptions.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

# Not every system has each of them.
_ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


def occupy_closed_streams() -> None:
    """Put the null device where the process was started with a closed standard stream (`2>&-`).

    Otherwise the next file opened gets its number, and a library's message ends up inside the audio. `sys.stdin` and
    `sys.stdout` stay None, which says that there is none; messages to `sys.stderr` go nowhere.
    """
    for number, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)):
        if stream is None:
            _occupy(number)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for the rest of the process


def forget(stream) -> None:
    """Point a standard stream that takes nothing any more at the null device: the interpreter's own flush at the end
    would fail again and change the exit code."""
    with contextlib.suppress(OSError, ValueError):  # a replaced stream has no descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


@contextlib.contextmanager
def signals_unwind() -> Iterator[None]:
    """SIGTERM and SIGHUP raise `SystemExit` with 128 + their number; then they and Ctrl-C are ignored, so that nothing
    cuts short the cleaning up. A signal that is ignored (`nohup`) stays so. Ctrl-C is `KeyboardInterrupt` inside."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ended(number, frame):
        for each in (*_ENDING, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = {}
    for number, handler in (*((number, ended) for number in _ENDING), (signal.SIGINT, signal.default_int_handler)):
        if signal.getsignal(number) not in (signal.SIG_IGN, None):
            before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _occupy(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        null = os.open(os.devnull, os.O_RDONLY if number == 0 else os.O_WRONLY)
        if null != number:
            os.dup2(null, number)
            os.close(null)
