"""Many utterances as one: the same voice, seed and settings, one stream of chunks, one result.

Nothing is generated here: every utterance comes from `Engine.speak`, when its turn comes, and silence lies between.
"""

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from tts_cli.engine import AudioChunk, CancelToken, Engine, Speech, SpeechRequest, Word
from tts_cli.utterances import Utterance

SILENCE_CHUNK = 0.5  # seconds; a long pause can be interrupted, and takes no memory


@dataclass(frozen=True)
class Mark:
    """Where an utterance sounds: seconds from the first sample of the reading, silence around it left out."""

    start: float
    end: float
    text: str


class Reading(Speech):
    """A text being read: iterate for `AudioChunk`s, then read `result`, as with the `Speech` of one utterance.

    `request` says how; its text is replaced by that of each piece. An explicit `max_frames` counts over the whole
    reading and ends it. Without one, an utterance that hits its automatic limit is cut, noted in `cut`, and the
    reading goes on. `marks` grows as utterances end, `words` as words are made by an engine that knows when they sound;
    both count from the first sample of the reading. Silence comes as chunks without codes. Only the last chunk has a
    finish reason: "cancelled", "limit" when anything was cut, or "eos".

    Raises `UsageError` at once for what `Engine.check` refuses in the first utterance, while iterating for a later one.
    """

    def __init__(self, engine: Engine, request: SpeechRequest, pieces: Iterable[Utterance],
                 cancel: CancelToken | None = None):
        seed = secrets.randbits(32) if request.seed is None else request.seed
        super().__init__(self._read(), engine.sample_rate, seed)
        self.marks: list[Mark] = []
        self.words: list[Word] = []
        self.cut: list[int] = []  # indices of utterances, from 0
        self._engine, self._request = engine, replace(request, seed=seed)
        self._cancel = cancel or CancelToken()
        self._pieces = iter(pieces)
        self._first = next(self._pieces, None)
        if self._first is not None:
            engine.check(replace(self._request, text=self._first.text))

    def _read(self) -> Iterator[AudioChunk]:
        """Raw chunks; `Speech` counts and checks them."""
        position, frames_left, index = 0, self._request.max_frames, 0
        piece, reason = self._first, "eos"
        while piece is not None and not self._cancel.cancelled:
            start = position
            lead = round(piece.lead * self.sample_rate)
            request = replace(self._request, text=piece.text, max_frames=frames_left,
                              early=self._request.early and index == 0)
            for chunk in self._engine.speak(request, self._cancel):
                # Held back until there is sound to follow, which the time to first audio is about.
                if lead and (chunk.samples.size or chunk.finish_reason):
                    yield from self._silence(lead)
                    start = position = position + lead
                    lead = 0
                self.words += [replace(word, start=position / self.sample_rate + word.start,
                                       end=position / self.sample_rate + word.end) for word in chunk.words]
                position += chunk.samples.size
                if frames_left is not None and chunk.codes is not None:
                    frames_left -= len(chunk.codes)
                if chunk.finish_reason is None:
                    yield chunk
            if position > start:
                self.marks.append(Mark(start / self.sample_rate, position / self.sample_rate, piece.text))
            silence, following, ended = round(piece.pause * self.sample_rate), next(self._pieces, None), False
            if chunk.finish_reason == "cancelled":
                reason, ended = "cancelled", True
            elif chunk.finish_reason == "limit" and frames_left is None:
                self.cut.append(index)
                reason = "limit"
            elif chunk.finish_reason == "limit" or (frames_left == 0 and following is not None):
                reason, ended = "limit", True
            if ended or (following is None and not silence):
                yield replace(chunk, finish_reason=reason)
                return
            yield replace(chunk, finish_reason=None)
            yield from self._silence(silence)
            position, piece, index = position + silence, following, index + 1
        if self._cancel.cancelled:
            reason = "cancelled"
        yield AudioChunk(np.zeros(0, np.float32), self.sample_rate, None, reason)

    def _silence(self, samples: int) -> Iterator[AudioChunk]:
        step = round(SILENCE_CHUNK * self.sample_rate)
        for start in range(0, samples, step):
            if self._cancel.cancelled:
                return
            yield AudioChunk(np.zeros(min(step, samples - start), np.float32), self.sample_rate)
