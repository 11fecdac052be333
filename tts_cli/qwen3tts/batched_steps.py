"""Frames of several utterances in one pass over the weights.

Reading the weights is most of what a frame costs, and it is the same for one row and for four. Utterances that take
turns on one thread begin their frames without making them; the first whose next frame is asked for has all that were
begun made together. A row gives the same bits in any company, so an utterance sounds as it does alone.
"""

import threading
from collections import deque
from typing import TYPE_CHECKING

from tts_cli.qwen3tts.steps import Frame, LoopOptions, ModuleSteps, PromptRows, predict_frames, read_frames

if TYPE_CHECKING:
    from tts_cli.qwen3tts.weights import Models


class Batch:
    """The frames that were begun. Utterances of several threads may meet here: one pass at a time."""

    def __init__(self):
        self._begun: list[BatchedSteps] = []
        self._turn = threading.RLock()  # a collector that closes an utterance in the midst of a pass comes back here

    def begin(self, steps: "BatchedSteps") -> None:
        with self._turn:
            self._begun.append(steps)

    def leave(self, steps: "BatchedSteps") -> None:
        """What it began is not wanted any more."""
        with self._turn:
            if steps in self._begun:
                self._begun.remove(steps)

    def make_for(self, steps: "BatchedSteps") -> None:
        """Make all frames begun, if one of `steps` is among them. What fails fails for each of them, and an interrupt
        ends each: nobody knows how far their caches came."""
        with self._turn:
            if steps not in self._begun:
                return
            begun, self._begun = self._begun, []
            try:
                read_frames(begun)
                if going := [one for one in begun if one.goes_on]:
                    predict_frames(going)
            except BaseException as error:
                for one in begun:
                    one.made.append(error)
            else:
                for one in begun:
                    one.made.append((one.first, Frame(one.codes, one.hidden) if one in going else None))


class BatchedSteps(ModuleSteps):
    """See `Steps`; begins one frame more than was looked at, so that others' frames can join it."""

    lag = 1

    def __init__(self, models: "Models", prompt: PromptRows, options: LoopOptions):
        super().__init__(models, prompt, options)
        self._batch = models.batch
        self.made: deque[tuple[int, Frame | None] | BaseException] = deque()

    @property
    def goes_on(self) -> bool:
        return self.first is None or self.first not in (self.options.eos, -1)

    def launch(self) -> None:
        self._batch.make_for(self)
        if self.goes_on:
            self._batch.begin(self)

    def token(self) -> int:
        if not self.made:
            self._batch.make_for(self)
        oldest = self.made.popleft()
        if isinstance(oldest, BaseException):
            raise oldest
        token, self._frame = oldest
        return token

    def frame(self) -> Frame:
        return self._frame

    def close(self) -> None:
        self._batch.leave(self)
