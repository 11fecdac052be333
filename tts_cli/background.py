"""Work off the main thread, so that the main thread acts on Ctrl-C at once, even while torch is in a long call.

Python runs signal handlers in the main thread only, between two bytecodes: a main thread inside a prefill would answer
seconds later. So the model is opened, loaded and run on one `Worker`, and whoever asked waits where a signal reaches.
"""

import contextlib
import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Generic, TypeVar

from tts_cli.engine import CancelToken

T = TypeVar("T")

# On Windows a lock without a timeout cannot be interrupted, and a timeout is not cut short: this bounds the answer.
POLL_SECONDS = 0.05
AHEAD_ITEMS = 8
_END = object()


class Abandoned(Exception):
    """Nobody waits for this worker's jobs any more."""


_workers: "weakref.WeakSet[Worker]" = weakref.WeakSet()


def any_busy() -> bool:
    """Whether a job still runs somewhere. Then the interpreter must not shut down normally: a thread inside a C++
    library that finds Python gone brings the process down with an abort."""
    return any(worker.busy for worker in list(_workers))


class Worker:
    """One thread that does jobs in turn; a context manager.

    It is the same thread for every job because OpenMP keeps a pool of threads per thread that calls it.
    """

    def __init__(self):
        self._jobs: queue.SimpleQueue = queue.SimpleQueue()
        self._pending = 0
        self.abandoned = False
        self._lock = threading.Lock()
        _workers.add(self)
        self._thread = threading.Thread(target=_work, args=(self._jobs,), name="tts worker", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        return self._pending > 0 and self._thread.is_alive()

    def submit(self, function: Callable[..., T], *arguments) -> "Future[T]":
        """Do `function(*arguments)` after the jobs given before."""
        future: Future[T] = Future()
        with self._lock:
            self._pending += 1
        future.add_done_callback(self._finished)
        self._jobs.put((future, function, arguments))
        return future

    def call(self, function: Callable[..., T], *arguments) -> T:
        """The result of `function(*arguments)`, or what it raised; Ctrl-C ends the waiting, not the job, and so does
        `abandon`, with `Abandoned`."""
        return wait(self.submit(function, *arguments), self)

    def ahead(self, items: Iterable[T], cancel: CancelToken, in_turns: bool = False) -> "Ahead[T]":
        """Iterate `items` on this worker, a few items ahead of the consumer; starts at once.

        in_turns  let other jobs have their turn after each item, not after the last
        """
        return Ahead(self, items, cancel, in_turns)

    def abandon(self) -> None:
        """Let all threads that wait for a job go on without it: one inside a long call of torch cannot be stopped."""
        self.abandoned = True

    def close(self) -> None:
        """Let the thread end after its jobs. Waits for an idle one only."""
        self._jobs.put(None)
        if not self.busy:
            self._thread.join(1)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def _finished(self, _: Future) -> None:
        with self._lock:
            self._pending -= 1


def wait(future: "Future[T]", worker: Worker | None = None) -> T:
    """`future.result()` that Ctrl-C interrupts on every system. Raises `Abandoned` when the worker was."""
    while True:
        try:
            return future.result(POLL_SECONDS)
        except FutureTimeout:
            if future.done():  # then the job itself raised it, or ended this instant
                return future.result()
            if worker is not None and worker.abandoned:
                raise Abandoned from None


def _work(jobs: queue.SimpleQueue) -> None:
    while (job := jobs.get()) is not None:
        future, function, arguments = job
        try:
            result = function(*arguments)
        except BaseException as error:  # it belongs to whoever waits for the result
            future.set_exception(error)
        else:
            future.set_result(result)
            del result
        del job, future, function, arguments  # an idle thread holds no model


class Ahead(Generic[T]):
    """Items made on a worker. What the source raises is raised to the consumer; `close` cancels and does not wait."""

    def __init__(self, worker: Worker, items: Iterable[T], cancel: CancelToken, in_turns: bool):
        self._passed: queue.Queue = queue.Queue(AHEAD_ITEMS)
        self._worker = worker
        self._cancel = cancel
        self._closed = threading.Event()
        self._ended = False
        self._made: Future[None] = Future()
        worker.submit(self._make, iter(items), in_turns)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        while not self._ended:
            with contextlib.suppress(queue.Empty):
                item = self._passed.get(timeout=POLL_SECONDS)
                if item is not _END:
                    return item
                self._ended = True
            if self._worker.abandoned:
                raise Abandoned
        wait(self._made, self._worker)  # raises what the source raised
        raise StopIteration

    def poll(self) -> T | None:
        """The next item when it is there already, else None."""
        with contextlib.suppress(queue.Empty):
            item = None if self._ended else self._passed.get_nowait()
            if item is not _END:
                return item
            self._ended = True
        return None

    def close(self) -> None:
        """Nobody wants the rest: cancel what is not done; safe to call twice and from any thread."""
        if not self._made.done():
            self._cancel.cancel()
        self._closed.set()

    def __enter__(self) -> "Ahead[T]":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def _make(self, items: Iterator[T], in_turns: bool) -> None:
        try:
            while (item := next(items, _END)) is not _END and self._pass(item):
                if in_turns:
                    self._worker.submit(self._make, items, in_turns)
                    return
        except BaseException as error:  # it belongs to whoever takes the items
            self._made.set_exception(error)
        else:
            self._made.set_result(None)
        self._pass(_END)

    def _pass(self, item) -> bool:
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                self._passed.put(item, timeout=POLL_SECONDS)
                return True
        return False
