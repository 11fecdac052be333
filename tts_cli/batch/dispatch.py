"""The one loop of a batch: rows are handed out lazily, outcomes come back in the order in which they end.

Where a row is spoken (this process, another one, another machine) is a `Crew`'s affair. A worker that dies takes no row
with it: its rows are given out again, alone, so that one which kills its workers is found and given up.
"""

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from tts_cli.batch.rows import Row
from tts_cli.batch.speaker import Outcome, failure
from tts_cli.errors import TtsError

LIVES = 3  # workers a row may lose
STARTS = 5  # workers in a row that end before they spoke anything


@dataclass(frozen=True)
class Event:
    """Of a worker: it is ready (neither of the others), it has an `outcome`, or it is gone, and why."""

    worker: Hashable
    outcome: Outcome | None = None
    gone: str | None = None


class Crew(Protocol):
    """Workers, each with a `Speaker`; a context manager that ends them, rows in work dropped."""

    size: int
    held: int  # rows a worker has at a time

    def start(self) -> Hashable:
        """Begin to start a worker; an event tells when it is ready or gone."""

    def give(self, worker: Hashable, row: Row) -> None:
        """Have it speak a row; an event brings the outcome, or tells that it is gone."""

    def events(self) -> Iterable[Event]:
        """What happened; waits a moment for something to happen."""


def outcomes(rows: Iterable[Row], crew: Crew) -> Iterator[Outcome]:
    """Every row's outcome, once. Raises `TtsError` when no worker can be kept."""
    return _Dispatch(rows, crew).run()


class _Dispatch:
    def __init__(self, rows: Iterable[Row], crew: Crew):
        self._rows, self._crew = iter(rows), crew
        self._again: deque[Row] = deque()  # lost their worker
        self._lost: Counter[str] = Counter()
        self._ready: dict[Hashable, dict[str, Row]] = {}
        self._barren = 0  # workers gone since the last outcome
        self._next = next(self._rows, None)

    def run(self) -> Iterator[Outcome]:
        if self._next is None:
            return
        for _ in range(self._crew.size):
            self._crew.start()
        while self._next is not None or self._again or any(self._ready.values()):
            self._hand_out()
            for event in self._crew.events():
                if event.gone is not None:
                    yield from self._bury(event)
                elif event.outcome is None:
                    self._ready[event.worker] = {}
                elif self._ready[event.worker].pop(event.outcome.row.id, None) is not None:
                    self._barren = 0
                    yield event.outcome

    def _hand_out(self) -> None:
        while (worker := min(self._ready, key=lambda one: len(self._ready[one]), default=None)) is not None:
            held = self._ready[worker]
            if len(held) >= self._crew.held:
                return
            if self._again and not held:
                row = self._again.popleft()
            elif self._next is not None and not any(self._lost[identity] for identity in held):
                row, self._next = self._next, next(self._rows, None)
            else:
                return
            held[row.id] = row
            self._crew.give(worker, row)

    def _bury(self, event: Event) -> Iterator[Outcome]:
        self._barren += 1
        for row in self._ready.pop(event.worker, {}).values():
            self._lost[row.id] += 1
            if self._lost[row.id] < LIVES:
                self._again.append(row)
            else:
                yield failure(row, f"its worker died {LIVES} times: {event.gone}", row.attempts + 1)
        if self._barren >= STARTS * self._crew.size:
            raise TtsError(f"workers cannot be kept, the last one went away with: {event.gone}")
        self._crew.start()
