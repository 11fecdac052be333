"""Text that arrives in pieces, spoken sentence by sentence as the sentences become whole."""

import secrets
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tts_cli.engine import AudioChunk, CancelToken, Engine, Speech, SpeechRequest
from tts_cli.errors import NothingToSpeak, UsageError
from tts_cli.reading import Reading
from tts_cli.sentences import stops
from tts_cli.text import clean_text
from tts_cli.utterances import utterances


class LiveText:
    """Sentences cut out of pieces of text. Filled by one thread, emptied by another.

    max_chars  a sentence longer than this is cut where an utterance would be
    """

    def __init__(self, max_chars: int):
        self._max_chars = max_chars
        self._lock = threading.Lock()
        self._rest = ""
        self._sentences: deque[str] = deque()
        self._ended = False

    def add(self, piece: str) -> None:
        with self._lock:
            self._rest += piece
            # A stop at the end of what is here may be the point of `3.5` or of `e.g.`: the next letters tell.
            ends = [stop.end for stop in stops(self._rest, 0, len(self._rest))
                    if stop.strong and self._rest[stop.end:].strip()]
            if ends:
                self._cut(ends[-1])
            elif len(self._rest) > 2 * self._max_chars:
                self._cut(self._rest.rfind(" ", 0, self._max_chars) + 1 or self._max_chars)

    def flush(self) -> None:
        """Speak what is there."""
        with self._lock:
            self._cut(len(self._rest))

    def end(self) -> None:
        """No more will come."""
        self.flush()
        with self._lock:
            self._ended = True

    @property
    def closed(self) -> bool:
        """`end` was called."""
        return self._ended

    @property
    def ended(self) -> bool:
        return self._ended and not self._sentences

    @property
    def symbols(self) -> str:
        """What waits for a word to go with."""
        return self._rest.strip()

    @property
    def ready(self) -> bool:
        """There is a sentence, or will be none."""
        return bool(self._sentences) or self._ended

    def take(self) -> str | None:
        """The next sentence; None when there is none now."""
        with self._lock:
            return self._sentences.popleft() if self._sentences else None

    def _cut(self, end: int) -> None:
        text, self._rest = self._rest[:end].strip(), self._rest[end:]
        if self._can_be_spoken(text):
            self._sentences.append(text)
        else:  # symbols and pauses go with the next word; of many of them the last
            self._rest = text[-(self._max_chars // 2):] + self._rest

    def _can_be_spoken(self, text: str) -> bool:
        try:
            utterances(clean_text(text), max_chars=self._max_chars)
        except UsageError:
            return False
        return True


class LiveSpeech(Speech):
    """The speech of a `LiveText`: chunks as from a `Reading`, as long as `can_go_on`.

    Sentences with nothing in them for the model are left out; raises `NothingToSpeak` at the end when nothing of a text
    was spoken.
    """

    def __init__(self, engine: Engine, request: SpeechRequest, text: LiveText, cancel: CancelToken, *, max_chars: int,
                 gap: float):
        seed = secrets.randbits(32) if request.seed is None else request.seed
        super().__init__(self._read(), engine.sample_rate, seed)
        self._engine, self._request, self._text, self._cancel = engine, replace(request, seed=seed), text, cancel
        self._max_chars, self._gap = max_chars, gap
        self._reading: Reading | None = None
        engine.check(replace(self._request, text="a"))

    @property
    def can_go_on(self) -> bool:
        return self._reading is not None or self._text.ready

    def _read(self) -> Iterator[AudioChunk]:
        reason, lead, spoken, refused = "eos", 0.0, False, None
        while (sentence := self._text.take()) is not None or not self._text.ended:
            if sentence is None:  # asked too early
                yield AudioChunk(np.zeros(0, np.float32), self.sample_rate)
                continue
            self._left_out += self._engine.unread(replace(self._request, text=sentence))
            pieces = utterances(clean_text(sentence), max_chars=self._max_chars, gap=self._gap)
            first = next(pieces)
            pieces = [replace(first, lead=first.lead + lead), *pieces]
            try:
                self._reading = Reading(self._engine, self._request, pieces, self._cancel)
            except NothingToSpeak as error:
                refused = refused or error
                continue
            for chunk in self._reading:
                if chunk.finish_reason is not None:
                    self._reading = None
                    reason = chunk.finish_reason if chunk.finish_reason != "eos" else reason
                yield replace(chunk, finish_reason=None)
            lead, spoken = self._gap, True
            if reason == "cancelled" or (reason == "limit" and self._request.max_frames is not None):
                break
        if not spoken and reason != "cancelled" and (refused or self._text.symbols):
            raise refused or NothingToSpeak("nothing to speak; at least one letter or digit is needed")
        yield AudioChunk(np.zeros(0, np.float32), self.sample_rate, None, reason)
