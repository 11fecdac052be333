"""Rows spoken in this process: one engine, its model on a thread of its own."""

import queue
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from tts_cli.background import POLL_SECONDS
from tts_cli.batch.dispatch import Event
from tts_cli.batch.rows import Row
from tts_cli.batch.speaker import Speaker


class Local:
    """A crew of one. See `dispatch.Crew`."""

    size = 1

    def __init__(self, speaker: Speaker):
        self._speaker, self.held = speaker, speaker.held
        self._threads = ThreadPoolExecutor(self.held, "tts batch")
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def start(self) -> str:
        self._events.put(Event("here"))
        return "here"

    def give(self, worker: str, row: Row) -> None:
        self._threads.submit(lambda: self._events.put(Event(worker, self._speaker.speak(row))))

    def events(self) -> Iterable[Event]:
        try:
            return [self._events.get(timeout=POLL_SECONDS)]
        except queue.Empty:
            return []

    def __enter__(self) -> "Local":
        return self

    def __exit__(self, *exception) -> None:
        self._speaker.cancel()
        self._threads.shutdown(cancel_futures=True)
        self._speaker.close()
