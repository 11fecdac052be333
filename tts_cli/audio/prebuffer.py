"""When to start playing: at once if audio is made faster than it plays, else late enough to finish without a gap."""

from __future__ import annotations

import math

# Audio that arrives in chunks is heard only when a chunk is whole, and chunks grow (engine.CHUNK_FRAMES): the next one
# is taken to be up to twice as long as the last, and none longer than this.
LONGEST_CHUNK = 1.0  # s
CAUTION = 0.9  # share of the measured speed that is counted on: it is measured over few chunks and varies


class Prebuffer:
    """The decision, apart from clocks and devices: arrivals go in, `ready` says whether playing may start.

    now        time of creation in seconds; the same clock as for `arrived`
    expected   seconds of audio in all, None when unknown: a slow engine then fills to the limit
    limit      with this many seconds waiting, playing starts in any case
    """

    def __init__(self, now: float, expected: float | None = None, limit: float = 10.0):
        self.limit = limit
        self._arrived = 0.0  # s of audio since the beginning
        self._total = expected
        self._begin = self._last = now  # the window in which the speed is measured starts here
        self._first: float | None = None  # time of the first arrival in it
        self._in_window = self._after_first = 0.0  # s of audio in it
        self._chunk = 0.0  # s, the last one

    def expect(self, seconds: float) -> None:
        """So much audio is still to come (an estimate; the end is announced to the player, not here)."""
        self._total = self._arrived + seconds

    def arrived(self, seconds: float, now: float) -> None:
        """A chunk of `seconds` of audio has been made."""
        if self._first is None:
            self._first = now
        else:
            self._after_first += seconds
        self._arrived += seconds
        self._in_window += seconds
        self._chunk = seconds
        self._last = now

    def restart(self) -> None:
        """Playing ran dry: measure anew from the last arrival, so that an old average does not hide a slow engine."""
        self._begin, self._first = self._last, None
        self._in_window = self._after_first = 0.0

    @property
    def speed(self) -> float:
        """Seconds of audio made per second.

        From the first arrival on; and from the window's beginning, a lower bound as that time holds the prompt and
        perhaps the loading, but known with the very first chunk.
        """
        since_first = self._last - self._first if self._first is not None else 0.0
        steady = self._after_first / since_first if since_first > 0 else (math.inf if self._after_first else 0.0)
        since_begin = self._last - self._begin
        bound = self._in_window / since_begin if since_begin > 0 else (math.inf if self._in_window else 0.0)
        return max(steady, bound)

    def ready(self, waiting: float) -> bool:
        """Whether to start with `waiting` seconds in the queue, asked right after an arrival."""
        return waiting > 0 and waiting >= min(self._needed(), self.limit)

    def _needed(self) -> float:
        """Seconds that must wait now so that every later chunk is whole before the one ahead of it has been played.

        After the chunks c_1 .. c_k, S_k = c_1 + ... + c_k seconds have been made in S_k / speed; c_k is late unless
        waiting + S_(k-1) >= S_k / speed.
        """
        speed = self.speed * CAUTION
        if speed <= 0:
            return math.inf
        remaining = math.inf if self._total is None else max(self._total - self._arrived, LONGEST_CHUNK)
        needed = made = 0.0
        chunk = self._chunk
        while made < remaining and needed < self.limit:
            chunk = min(2 * chunk, LONGEST_CHUNK, remaining - made)
            needed = max(needed, (made + chunk) / speed - made)
            made += chunk
            if chunk <= 0 or (speed >= 1 and chunk == LONGEST_CHUNK):
                break  # from here on equal chunks come faster than they are played
        return needed
