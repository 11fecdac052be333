"""Frames by two functions of tensors whose shapes never change, so that each can be one CUDA graph.

`code_frame`: talker hidden -> codebook 0 and the predictor's 15 steps. `Lanes.step`: those codes -> next talker hidden.
Both are for as many utterances as a set of lanes has: one, or with utterances that take turns `ROWS`, of which those
make a frame that have begun one. Lanes without make one that nobody looks at: what a row costs is nothing beside the
weights, and always the same shapes give a row the same numbers in any company.

Nothing waits for the device: a frame's codes travel to the host while the next frame is made, and a frame begun after
the last is dropped.
"""

from collections import OrderedDict, defaultdict, deque
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tts_cli.qwen3tts.code_predictor import CodePredictor
from tts_cli.qwen3tts.graphs import Graphed
from tts_cli.qwen3tts.sampling import SamplingOptions
from tts_cli.qwen3tts.steps import Chances, Frame, LoopOptions, PromptRows, draw_first
from tts_cli.qwen3tts.talker import Talker

if TYPE_CHECKING:
    from tts_cli.qwen3tts.weights import Models

# Positions a lane begins with. The talker reads all keys of its lanes for each frame, so long ones are slower.
SHORTEST_LANE = 256
ROWS = 16  # utterances that take turns and share a set of lanes
KEPT_OPTIONS = 8  # sets of sampling options, which are part of a captured function


class StaticModels:
    """What utterances share: the captured functions, and lanes. See `Graphed` for `graphs`.

    vocoder_stream  where code2wav runs beside the talker; None where there are no streams
    """

    def __init__(self, talker: Talker, predictor: CodePredictor, device: torch.device, graphs: bool):
        self.talker, self.predictor, self.graphs = talker, predictor, graphs
        self.vocoder_stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._code_frames: OrderedDict[tuple, Graphed] = OrderedDict()
        self._lanes: dict[tuple[int, int], list[Lanes]] = defaultdict(list)

    def code_frame(self, options: LoopOptions, rows: int) -> Graphed:
        """(hidden [rows, H], seen, forbidden [rows, codec_vocab], uniforms [rows, 16]) -> (codes int64 [rows, 16],
        seen)."""
        key = *options.sampling, rows
        if key not in self._code_frames:
            self._code_frames[key] = Graphed(self._code_frame(*key), self.graphs)
            while len(self._code_frames) > KEPT_OPTIONS:
                self._code_frames.popitem(last=False)
        self._code_frames.move_to_end(key)
        return self._code_frames[key]

    def _code_frame(self, first_options: SamplingOptions, options: SamplingOptions, penalty: float, rows: int):
        def code_frame(hidden: Tensor, seen: Tensor, forbidden: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
            logits = self.talker.logits(hidden)
            first, seen = draw_first(logits, seen, forbidden, penalty, first_options, uniforms[:, 0])
            return self.predictor.predict(hidden, first, [options] * rows, uniforms[:, 1:]), seen
        return code_frame

    def join(self, steps: "StaticSteps", positions: int, rows: int) -> "tuple[Lanes, int]":
        """Lanes that hold so many positions, and which of them is the utterance's, until it leaves."""
        capacity = max(SHORTEST_LANE, 1 << (positions - 1).bit_length())
        sets = self._lanes[rows, capacity]
        lanes = next((one for one in sets if one.takes(steps.options)), None)
        if lanes is None:
            lanes = Lanes(self, rows, capacity)
            sets.append(lanes)
        return lanes, lanes.join(steps)

    def keep_one(self, free: "Lanes") -> None:
        """Of free lanes; a set of them takes memory."""
        sets = self._lanes[free.rows, free.cache.capacity]
        if any(one.is_free for one in sets if one is not free):
            sets.remove(free)


class Lanes:
    """The talker's keys and values of up to `rows` utterances with the same sampling options, and their frames."""

    def __init__(self, shared: StaticModels, rows: int, capacity: int):
        talker, predictor = shared.talker, shared.predictor
        cache = self.cache = talker.decoder.static_cache(rows, capacity)
        self._shared, self.rows = shared, rows
        self._utterances: list[StaticSteps | None] = [None] * rows
        self._begun: list[StaticSteps] = []
        self._code_frame: Graphed | None = None

        def step(codes: Tensor, overlays: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
            hidden = talker.step(predictor.embed_frame(codes) + overlays, replace(cache, position=positions))
            return hidden, positions + 1
        # (codes int64 [rows, 16], overlays [rows, H], positions int64 [rows]) -> (hidden [rows, H], next positions)
        self.step = Graphed(step, shared.graphs)

    @property
    def is_free(self) -> bool:
        return not any(self._utterances)

    def takes(self, options: LoopOptions) -> bool:
        """Whether there is a lane left for an utterance with these options."""
        others = [one for one in self._utterances if one is not None]
        return len(others) < self.rows and all(one.options.sampling == options.sampling for one in others)

    def join(self, steps: "StaticSteps") -> int:
        row = self._utterances.index(None)
        self._utterances[row] = steps
        self.cache.k[:, row].zero_(), self.cache.v[:, row].zero_()
        self._code_frame = self._shared.code_frame(steps.options, self.rows)
        return row

    def leave(self, steps: "StaticSteps") -> None:
        self._utterances[steps.row] = None
        if steps in self._begun:
            self._begun.remove(steps)
        if self.is_free:
            self._shared.keep_one(self)

    def begin(self, steps: "StaticSteps") -> None:
        """The next frame of one of them; made when all have begun one, or when one is asked for."""
        self._begun.append(steps)
        if len(self._begun) == self.rows - self._utterances.count(None):
            self.make()

    def make_for(self, steps: "StaticSteps") -> None:
        if steps in self._begun:
            self.make()

    @torch.inference_mode()
    def make(self) -> None:
        """All frames that were begun. What fails fails for each of them: nobody knows how far they came."""
        begun, self._begun = self._begun, []
        try:
            if going := [one for one in begun if one.codes is not None]:  # the others have just read their prompts
                self.read_frames(going)
            self.predict_frames(begun)
        except BaseException as error:
            for one in begun:
                one.made.append(error)

    def read_frames(self, utterances: "list[StaticSteps]") -> None:
        """The talker reads their newest frames."""
        for one in utterances:
            one.next_overlay()
        hidden, positions = self.step(*(self._stacked(name) for name in ("codes", "overlay", "position")))
        for one in utterances:
            one.hidden, one.position = hidden[one.row], positions[one.row]

    def predict_frames(self, utterances: "list[StaticSteps]") -> None:
        """All books of their next frames."""
        for one in utterances:
            one.next_chances()
        codes, seen = self._code_frame(*(self._stacked(name) for name in ("hidden", "seen", "forbidden", "uniforms")))
        for one in utterances:
            one.codes, one.seen = codes[one.row], seen[one.row]
            one.made.append(Begun(Frame(one.codes, one.hidden)))

    def _stacked(self, name: str) -> Tensor:
        """That number of all utterances, zeros where there is none."""
        values = [None if one is None else getattr(one, name) for one in self._utterances]
        blank = torch.zeros_like(next(value for value in values if value is not None))
        return torch.stack([blank if value is None else value for value in values])


class StaticSteps:
    """See `Steps`; one frame ahead.

    What `Lanes` knows of an utterance: codes int64 [16] and hidden [H] of its newest frame, seen bool [codec_vocab],
    position int64 [], where its next step writes, and what that step and the draws behind it take: overlay [H],
    forbidden bool [codec_vocab], uniforms [16]. None while there is none.
    """

    lag = 1

    @torch.inference_mode()
    def __init__(self, models: "Models", prompt: PromptRows, options: LoopOptions, in_turns: bool = False):
        device, self._length = prompt.rows.device, len(prompt.rows)
        self._shared, self.options, self._together = models.static, options, ROWS if in_turns else 1
        self._overlays, self._chances = prompt.overlays(), Chances(models, options, device)
        self.made: deque[Begun | BaseException] = deque()
        self.codes = self.overlay = self.forbidden = self.uniforms = None
        self.seen, self.position = self._chances.seen, torch.tensor(self._length, device=device)
        self._lanes, self.row = self._shared.join(self, self._length + 1, self._together)
        self.hidden = models.talker.prefill(prompt.rows, self._lanes.cache.sequence(self.row), prompt.prefix)

    def launch(self) -> None:
        self._lanes.make_for(self)
        if self.codes is not None:
            if self._length == self._lanes.cache.capacity:
                self._lengthen()
            self._length += 1
        self._lanes.begin(self)

    def next_overlay(self) -> None:
        self.overlay = next(self._overlays)

    def next_chances(self) -> None:
        self.uniforms, self.forbidden = self._chances.next()

    @torch.inference_mode()
    def _lengthen(self) -> None:
        short, row = self._lanes.cache, self.row
        self._lanes.leave(self)
        self._lanes, self.row = self._shared.join(self, self._length + 1, self._together)
        for old, new in ((short.k, self._lanes.cache.k), (short.v, self._lanes.cache.v)):
            new[:, self.row, :, :self._length] = old[:, row]

    def token(self) -> int:
        if not self.made:
            self._lanes.make_for(self)
        oldest = self.made.popleft()
        if isinstance(oldest, BaseException):
            raise oldest
        self._oldest = oldest
        return oldest.token()

    def frame(self) -> Frame:
        return self._oldest.frame

    def close(self) -> None:
        self._lanes.leave(self)


class Begun:
    """A frame on its way, with a copy of its codes for the host."""

    def __init__(self, frame: Frame):
        self.frame = frame
        cuda = frame.codes.is_cuda
        self._host = frame.codes.to("cpu", non_blocking=cuda)  # into pinned memory
        self._there = torch.cuda.Event() if cuda else None
        if cuda:
            self._there.record(torch.cuda.current_stream(frame.codes.device))

    def token(self) -> int:
        if self._there is not None:
            self._there.synchronize()
        return int(self._host[0])
