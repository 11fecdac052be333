"""Many utterances as one: the same voice, seed and settings, one stream of chunks, one result.

Nothing is generated here: every utterance comes from `Engine.speak`, when its turn comes or a little before, and
silence lies between.
"""

import contextlib
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from tts_cli.engine import AudioChunk, CancelToken, Engine, Speech, SpeechRequest, Word
from tts_cli.errors import NothingToSpeak
from tts_cli.utterances import Utterance

SILENCE_CHUNK = 0.5  # seconds; a long pause can be interrupted, and takes no memory


def from_first_spoken(engine: Engine, request: SpeechRequest, pieces: Iterable[Utterance]) -> Iterator[Utterance]:
    """The model's own `Engine.parts` of `pieces` from the first on in which it finds something to speak, later ones
    unseen.

    Raises `UsageError` for what `Engine.check` refuses in it, `NothingToSpeak` when there is none.
    """
    parts, refused = engine.parts(pieces), None
    for piece in parts:
        try:
            engine.check(replace(request, text=piece.text))
        except NothingToSpeak as error:
            refused = refused or error
        else:
            return chain([piece], parts)
    if refused is not None:
        raise refused
    return iter(())


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
    finish reason: "cancelled", "limit" when anything was cut, or "eos". What is spoken for the pieces are
    the model's own `Engine.parts` of them.

    together  how many utterances to make side by side (see `Engine.together`): for readings that are heard when they
              are done. `max_frames` counts over utterances in order, so with it they are made one after another.

    Utterances with nothing in them for the model, such as a paragraph in a language that it does not read, are left out
    with the silence behind them; `result.left_out` has all words that were.

    Raises `UsageError` at once for what `Engine.check` refuses in the first utterance, while iterating for a later one;
    `NothingToSpeak` when there is nothing in any.
    """

    def __init__(self, engine: Engine, request: SpeechRequest, pieces: Iterable[Utterance],
                 cancel: CancelToken | None = None, together: int = 1):
        seed = secrets.randbits(32) if request.seed is None else request.seed
        super().__init__(self._read(), engine.sample_rate, seed)
        self.marks: list[Mark] = []
        self.words: list[Word] = []
        self.cut: list[int] = []  # indices of utterances, from 0
        self._engine, self._request = engine, replace(request, seed=seed)
        self._cancel = cancel or CancelToken()
        self._frames_left = request.max_frames
        self._utterances = _InOrder(self._speak, from_first_spoken(engine, self._request, self._taken(pieces)),
                                    together if self._frames_left is None else 1)

    def _taken(self, pieces: Iterable[Utterance]) -> Iterator[Utterance]:
        for piece in pieces:
            self._left_out += self._engine.unread(replace(self._request, text=piece.text))
            yield piece

    def _speak(self, index: int, text: str, in_turns: bool) -> Speech:
        request = self._request
        try:
            return self._engine.speak(
                replace(request, text=text, max_frames=self._frames_left, early=request.early and index == 0,
                        in_turns=request.in_turns or in_turns), self._cancel)
        except NothingToSpeak:
            nothing = AudioChunk(np.zeros(0, np.float32), self.sample_rate, None, "eos")
            return Speech(iter([nothing]), self.sample_rate, self.seed)

    def _read(self) -> Iterator[AudioChunk]:
        """Raw chunks; `Speech` counts and checks them."""
        with contextlib.closing(self._utterances):
            yield from self._read_in_order()

    def _read_in_order(self) -> Iterator[AudioChunk]:
        position, index, reason = 0, 0, "eos"
        while (piece := self._utterances.first) is not None and not self._cancel.cancelled:
            start = position
            lead = round(piece.lead * self.sample_rate)
            for chunk in self._utterances.chunks():
                # Held back until there is sound to follow, which the time to first audio is about.
                if lead and (chunk.samples.size or chunk.finish_reason):
                    yield from self._silence(lead)
                    start = position = position + lead
                    lead = 0
                self.words += [replace(word, start=position / self.sample_rate + word.start,
                                       end=position / self.sample_rate + word.end) for word in chunk.words]
                position += chunk.samples.size
                if self._frames_left is not None and chunk.codes is not None:
                    self._frames_left -= len(chunk.codes)
                if chunk.finish_reason is None:
                    yield chunk
            if position > start:
                self.marks.append(Mark(start / self.sample_rate, position / self.sample_rate, piece.text))
            silence, ended = round(piece.pause * self.sample_rate) if position > start else 0, False
            following = self._utterances.leave_first()
            if chunk.finish_reason == "cancelled":
                reason, ended = "cancelled", True
            elif chunk.finish_reason == "limit" and self._frames_left is None:
                self.cut.append(index)
                reason = "limit"
            elif chunk.finish_reason == "limit" or (self._frames_left == 0 and following is not None):
                reason, ended = "limit", True
            if ended or (following is None and not silence):
                yield replace(chunk, finish_reason=reason)
                return
            yield replace(chunk, finish_reason=None)
            yield from self._silence(silence)
            position, index = position + silence, index + 1
        if self._cancel.cancelled:
            reason = "cancelled"
        yield AudioChunk(np.zeros(0, np.float32), self.sample_rate, None, reason)

    def _silence(self, samples: int) -> Iterator[AudioChunk]:
        step = round(SILENCE_CHUNK * self.sample_rate)
        for start in range(0, samples, step):
            if self._cancel.cancelled:
                return
            yield AudioChunk(np.zeros(min(step, samples - start), np.float32), self.sample_rate)


@dataclass
class _Begun:
    """An utterance that is being made, and what came of it that nobody took yet."""

    index: int
    piece: Utterance
    speech: Speech | None = None
    made: deque[AudioChunk | Exception] = field(default_factory=deque)
    ended: bool = False


class _InOrder:
    """Utterances of which up to `together` are made at a time, a chunk each in turn, and taken in order.

    speak  (index, text, whether it takes turns with others) -> the utterance
    """

    def __init__(self, speak: Callable[[int, str, bool], Speech], pieces: Iterable[Utterance], together: int):
        self._speak, self._pieces, self._together = speak, iter(pieces), together
        self._left = 0  # how many are done with
        self._begun: deque[_Begun] = deque()
        self._fill(1)

    @property
    def first(self) -> Utterance | None:
        """The one whose chunks are to be taken."""
        return self._begun[0].piece if self._begun else None

    def chunks(self) -> Iterator[AudioChunk]:
        """All of the first. Raises what its making raised."""
        first = self._begun[0]
        while first.made or not first.ended:
            if not first.made:
                self._turn()
            elif isinstance(first.made[0], Exception):
                raise first.made.popleft()
            else:
                yield first.made.popleft()

    def leave_first(self) -> Utterance | None:
        """On to the next, if there is one."""
        self._begun.popleft()
        self._left += 1
        self._fill(1)
        return self.first

    def close(self) -> None:
        """Drop what was begun and is not wanted any more, though somebody may keep the reading for its result."""
        self._begun.clear()

    def _fill(self, count: int) -> None:
        while len(self._begun) < count and (piece := next(self._pieces, None)) is not None:
            self._begun.append(_Begun(self._left + len(self._begun), piece))

    def _turn(self) -> None:
        try:
            self._fill(self._together)
        except Exception as error:  # the text's own, which is told when all before it was read
            self._pieces = _failing(error)
        for one in self._begun:
            if one.ended:
                continue
            try:
                if one.speech is None:
                    one.speech = self._speak(one.index, one.piece.text, self._together > 1)
                chunk = next(one.speech)
            except Exception as error:  # its consumer's, when its turn has come
                one.made.append(error)
                one.ended = True
                continue
            one.ended = chunk.finish_reason is not None
            if chunk.samples.size or one.ended or self._together == 1:  # an empty one is somebody else's turn
                one.made.append(chunk)


def _failing(error: Exception) -> Iterator[Utterance]:
    raise error
    yield
