"""The one thread that owns the model, and the requests it advances in turn.

A `Job` is a generator of chunks with a consumer on an event loop. All jobs stand in one list in the order of their
arrival. At every turn the worker looks at the first `parallel` of them that can go on, and makes the next frame of the
one whose listener would run out of sound first: somebody who has heard nothing yet, then the one least ahead of real
time. A job whose consumer takes nothing is passed over, and its place goes to the next in the list. The state of an
utterance belongs to its generator, so results do not depend on what runs beside it; and the length of a chunk must not
depend on it either, as samples are equal for all lengths only up to rounding.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Protocol

from tts_cli.background import Worker
from tts_cli.engine import AudioChunk, CancelToken, SpeechResult
from tts_cli.errors import TtsError

_PREPARED = object()
_STOPPED = "the server was stopped before this request was done"


class Busy(TtsError):
    """The queue is full, or the server is about to end: ask again later."""


class Cancelled(TtsError):
    """The job was cancelled before its end."""


class Source(Protocol):
    """What a job consumes: a `Speech`, or something that may also have to wait for its text."""

    sample_rate: int
    result: SpeechResult

    def __next__(self) -> AudioChunk: ...


class Observer(Protocol):
    """Told about every job, on the worker's thread."""

    def began(self, waited: float) -> None: ...

    def first_audio(self, seconds: float) -> None: ...

    def ended(self, reason: str, audio_seconds: float, wall_seconds: float) -> None: ...


class Job:
    """One stream of speech: `await prepared()`, then iterate with `async for`. Created by `SpeechWorker.submit`.

    `start` is called on the worker's thread and raises what makes the request impossible: at once, or when it takes
    its time (`long_start`) in the job's own turn. `ready` says whether the next chunk can be made without waiting.
    """

    def __init__(self, worker: "SpeechWorker", start: Callable[[CancelToken], Source], ready: Callable[[], bool],
                 long_start: bool):
        self._worker, self._start, self._ready, self._long_start = worker, start, ready, long_start
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue = asyncio.Queue()
        self._token = CancelToken()
        self._source: Source | None = None
        self._submitted = time.perf_counter()
        self._first_turn: float | None = None
        self._first_audio: float | None = None
        self._made = 0.0      # seconds of audio
        self._untaken = 0.0   # of these not yet with the consumer
        self.result: SpeechResult | None = None

    # ---- the consumer, on the event loop ----------------------------------------------------------------------------

    async def prepared(self) -> None:
        """Wait until the request was found possible. Raises what `start` raised, or `Cancelled`."""
        item = await self._items.get()
        if item is not _PREPARED:
            raise item

    def __aiter__(self) -> "Job":
        return self

    async def __anext__(self) -> AudioChunk:
        """Raises what the model raised, or `Cancelled`."""
        await asyncio.sleep(0)  # a queue that is full never waits, and everybody else on the loop would
        item = await self._items.get()
        if item is None:
            raise StopAsyncIteration
        if isinstance(item, Exception):
            raise item
        self._worker.taken(self, len(item.samples) / item.sample_rate)
        return item

    def cancel(self) -> None:
        """Nobody wants the rest. Safe from any thread, and after the end."""
        self._token.cancel()
        self._worker.wake()

    def stop(self) -> None:
        """The server's own wish: its consumer hears at once, even while the model is in a long pass."""
        self.cancel()
        self._hand_over(Cancelled(_STOPPED))

    @property
    def made_seconds(self) -> float:
        """Of audio, so far."""
        return self._made

    # ---- the worker's thread ----------------------------------------------------------------------------------------

    @property
    def is_prepared(self) -> bool:
        return self._source is not None

    @property
    def is_cancelled(self) -> bool:
        return self._token.cancelled

    @property
    def is_waiting(self) -> bool:
        """Still in the queue: nothing was made."""
        return self._first_turn is None

    @property
    def comes_first(self) -> bool:
        """Takes no time, and somebody waits for it."""
        return self.is_cancelled or not (self.is_prepared or self._long_start)

    def can_go_on(self, ahead_seconds: float) -> bool:
        return not self.is_prepared or (self._untaken < ahead_seconds and self._ready())

    def lead(self) -> float:
        """Seconds of sound that a listener has left; -inf before the first."""
        if self._first_audio is None:
            return -float("inf")
        return self._made - (time.perf_counter() - self._first_audio)

    def prepare(self) -> None:
        self._source = self._start(self._token)
        self._hand_over(_PREPARED)

    def advance(self, observer: Observer) -> bool:
        """Make the next chunk; whether it was the last. Raises `Cancelled`."""
        if self._first_turn is None:
            self._first_turn = time.perf_counter()
            observer.began(self._first_turn - self._submitted)
        chunk = next(self._source)
        if chunk.finish_reason == "cancelled":
            raise Cancelled(_STOPPED)
        seconds = len(chunk.samples) / chunk.sample_rate
        if seconds and self._first_audio is None:
            self._first_audio = time.perf_counter()
            observer.first_audio(self._first_audio - self._submitted)
        self._made += seconds
        self._worker.made(self, seconds)
        last = chunk.finish_reason is not None
        if last:
            self.result = self._source.result
        if seconds or last:  # not for a frame that waits for its chunk to be full
            self._hand_over(chunk)
        return last

    def end(self, observer: Observer, error: Exception | None = None) -> None:
        self._hand_over(error)
        refused = not self.is_prepared
        self._source = self._start = None  # the model's state goes now, not when the last consumer has read
        if refused:
            return
        if error is None:
            reason = self.result.finish_reason
        else:
            reason = "cancelled" if isinstance(error, Cancelled) else "error"
        began = self._first_turn or time.perf_counter()
        observer.ended(reason, self._made, time.perf_counter() - began)

    def count(self, seconds: float) -> None:
        """More audio that nobody took, or less. Called under the worker's lock."""
        self._untaken += seconds

    def _hand_over(self, item) -> None:
        try:
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)
        except RuntimeError:  # the loop is closed, and the consumer with it
            self._token.cancel()


class SpeechWorker:
    """Runs jobs. `load` is done first on the thread; jobs that come before it is done wait in the queue.

    parallel       jobs advanced in turn
    queue          how many more are taken
    ahead_seconds  of audio a job may be ahead of its consumer
    """

    def __init__(self, load: Callable[[], None], observer: Observer, *, parallel: int, queue: int,
                 ahead_seconds: float):
        self._observer = observer
        self._parallel, self._most, self._ahead = parallel, parallel + queue, ahead_seconds
        self._changed = threading.Condition()
        self._jobs: list[Job] = []
        self._closed = False
        self._thread = Worker()
        self.loaded = self._thread.submit(load)
        self._running = self._thread.submit(self._run)

    @property
    def alive(self) -> bool:
        return not self._running.done()

    @property
    def waiting(self) -> int:
        return sum(job.is_waiting for job in tuple(self._jobs))

    @property
    def active(self) -> int:
        return sum(not job.is_waiting for job in tuple(self._jobs))

    @property
    def unfinished(self) -> int:
        return len(self._jobs)

    def submit(self, start: Callable[[CancelToken], Source], ready: Callable[[], bool] = lambda: True, *,
               long_start: bool = False) -> Job:
        """To be called on the event loop that consumes the job. Raises `Busy`."""
        job = Job(self, start, ready, long_start)
        with self._changed:
            if self._closed or not self.alive:
                raise Busy("the server is shutting down")
            if len(self._jobs) >= self._most:
                raise Busy(f"all places are taken: {self._most} requests are being spoken or wait; ask again later")
            self._jobs.append(job)
            self._changed.notify()
        return job

    def wake(self) -> None:
        """Look again: a job was cancelled, or got text."""
        with self._changed:
            self._changed.notify()

    def made(self, job: Job, seconds: float) -> None:
        with self._changed:
            job.count(seconds)

    def taken(self, job: Job, seconds: float) -> None:
        with self._changed:
            job.count(-seconds)
            self._changed.notify()

    def close(self) -> None:
        """Cancel what is left and let the thread end."""
        with self._changed:
            self._closed = True
            jobs = tuple(self._jobs)
        for job in jobs:
            job.stop()
        self.wake()
        self._thread.close()

    def _run(self) -> None:
        while (job := self._next()) is not None:
            try:
                ended = self._turn(job)
            except Exception as error:  # of this request alone
                self._remove(job, error)
            else:
                if ended:
                    self._remove(job, None)
            del job

    def _next(self) -> Job | None:
        """The job whose turn it is; None when all is over."""
        with self._changed:
            while True:
                if self._closed and not self._jobs:
                    return None
                for job in self._jobs:
                    if job.comes_first:
                        return job
                able = [job for job in self._jobs if job.can_go_on(self._ahead)]
                if able:
                    return min(able[:self._parallel], key=Job.lead)
                self._changed.wait()

    def _turn(self, job: Job) -> bool:
        if job.is_cancelled:
            raise Cancelled(_STOPPED)
        if not job.is_prepared:
            job.prepare()
            return False
        return job.advance(self._observer)

    def _remove(self, job: Job, error: Exception | None) -> None:
        with self._changed:
            self._jobs.remove(job)
        job.end(self._observer, error)
