"""Rows spoken by several processes of this machine, an engine each; the model's files are mapped, so they share pages.

A process is spawned, never forked: torch's threads do not survive a fork. It ends when its pipe ends, so none is left
behind whatever happens to this one.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait

from tts_cli.background import POLL_SECONDS, any_busy
from tts_cli.batch.dispatch import Event
from tts_cli.batch.rows import Row
from tts_cli.batch.speaker import Setup, Speaker
from tts_cli.errors import TtsError

END_SECONDS = 10.0  # that a process has for dropping its rows
_READY = "ready"


@dataclass(frozen=True)
class _Refused:
    """Why a process has no model."""

    message: str


class Pool:
    """A crew of processes. See `dispatch.Crew`.

    threads   CPU threads of them all together
    """

    def __init__(self, setup: Setup, size: int, threads: int):
        self.size, self.held = size, setup.held
        self._setup = replace(setup, choice=replace(setup.choice, threads=max(1, threads // size)))
        self._context = multiprocessing.get_context("spawn")
        self._processes: dict[Connection, multiprocessing.process.BaseProcess] = {}
        self._ready: set[Connection] = set()

    def start(self) -> Connection:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, self._setup), name="tts batch", daemon=True)
        process.start()
        theirs.close()
        self._processes[ours] = process
        return ours

    def give(self, worker: Connection, row: Row) -> None:
        with contextlib.suppress(OSError):  # when it is gone, `events` will tell
            worker.send(row)

    def events(self) -> Iterable[Event]:
        for worker in wait(list(self._processes), POLL_SECONDS):
            try:
                message = worker.recv()
            except (EOFError, OSError):
                yield Event(worker, gone=self._buried(worker))
                continue
            if isinstance(message, _Refused):
                raise TtsError(message.message)
            self._ready.add(worker)
            yield Event(worker, None if message == _READY else message)

    def pids(self) -> list[int]:
        return [process.pid for process in self._processes.values()]

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *exception) -> None:
        for worker, process in self._processes.items():
            if worker not in self._ready:  # it has no row to drop, and may look at its pipe in some seconds only
                process.kill()
            worker.close()
        for process in self._processes.values():
            process.join(END_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()

    def _buried(self, worker: Connection) -> str:
        process = self._processes.pop(worker)
        worker.close()
        process.join()
        code = process.exitcode
        return f"signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"exit code {code}"


def _serve(pipe: Connection, setup: Setup) -> None:
    """The process: rows come, outcomes go, until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one decides
    try:
        speaker = Speaker(setup)
    except TtsError as error:
        pipe.send(_Refused(str(error)))
        return
    sending = threading.Lock()

    def speak(row: Row) -> None:
        outcome = speaker.speak(row)
        with sending:
            pipe.send(outcome)
    with ThreadPoolExecutor(setup.held) as threads:
        try:
            pipe.send(_READY)
            while True:
                threads.submit(speak, pipe.recv())
        except (EOFError, OSError):
            speaker.cancel()
            threads.shutdown(cancel_futures=True)
    speaker.close()
    if any_busy():  # a thread inside torch would outlive Python, and crash in it
        os._exit(0)
