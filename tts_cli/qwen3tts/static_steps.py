"""Frames by two functions of tensors whose shapes never change, so that each can be one CUDA graph.

`code_frame`: talker hidden -> codebook 0 and the predictor's 15 steps. `Lane.step`: those codes -> next talker hidden.
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

# Positions a lane begins with. The talker reads all keys of its lane for each frame, so a long one is slower.
SHORTEST_LANE = 256
KEPT_OPTIONS = 8  # sets of sampling options, which are part of a captured function


class StaticModels:
    """What utterances share: the captured functions, and lanes that no utterance is using. See `Graphed` for `graphs`.

    vocoder_stream  where code2wav runs beside the talker; None where there are no streams
    """

    def __init__(self, talker: Talker, predictor: CodePredictor, device: torch.device, graphs: bool):
        self.talker, self.predictor, self.graphs = talker, predictor, graphs
        self.vocoder_stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._code_frames: OrderedDict[tuple, Graphed] = OrderedDict()
        self._free: dict[int, list[Lane]] = defaultdict(list)

    def code_frame(self, options: LoopOptions) -> Graphed:
        """(hidden [H], seen, forbidden [codec_vocab], uniforms [16]) -> (codes int64 [16], seen)."""
        key = options.talker, options.predictor, options.repeat_penalty
        if key not in self._code_frames:
            self._code_frames[key] = Graphed(self._code_frame(*key), self.graphs)
            while len(self._code_frames) > KEPT_OPTIONS:
                self._code_frames.popitem(last=False)
        self._code_frames.move_to_end(key)
        return self._code_frames[key]

    def _code_frame(self, first_options: SamplingOptions, options: SamplingOptions, penalty: float):
        def code_frame(hidden: Tensor, seen: Tensor, forbidden: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
            logits = self.talker.logits(hidden)
            first, seen = draw_first(logits, seen, forbidden, penalty, first_options, uniforms[0])
            return self.predictor.predict(hidden[None], first[None], [options], uniforms[None, 1:])[0], seen
        return code_frame

    def lane(self, positions: int) -> "Lane":
        """One that holds as many, with its numbers at zero. `release` takes it back."""
        capacity = max(SHORTEST_LANE, 1 << (positions - 1).bit_length())
        lane = self._free[capacity].pop() if self._free[capacity] else Lane(self, capacity)
        lane.cache.k.zero_(), lane.cache.v.zero_()
        return lane

    def release(self, lane: "Lane") -> None:
        self._free[lane.cache.capacity].append(lane)


class Lane:
    """The talker's keys and values for one utterance at a time, and its step over them."""

    def __init__(self, shared: StaticModels, capacity: int):
        talker, predictor = shared.talker, shared.predictor
        cache = self.cache = talker.decoder.static_cache(capacity)

        def step(codes: Tensor, overlay: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
            hidden = talker.step(predictor.embed_frame(codes) + overlay, replace(cache, position=position))
            return hidden, position + 1
        # (codes int64 [16], overlay [H], position int64 [1]) -> (hidden [H], next position)
        self.step = Graphed(step, shared.graphs)


class StaticSteps:
    """See `Steps`; one frame ahead."""

    lag = 1

    @torch.inference_mode()
    def __init__(self, models: "Models", prompt: PromptRows, options: LoopOptions):
        device, self._length = prompt.rows.device, len(prompt.rows)
        shared = self._shared = models.static
        self._overlays = prompt.overlays()
        self._chances, self._code_frame = Chances(models, options, device), shared.code_frame(options)
        self._lane = shared.lane(self._length + 1)
        self._hidden = models.talker.prefill(prompt.rows, self._lane.cache.filled(0), prompt.prefix)
        self._position = torch.full((1,), self._length, device=device)
        self._begun: deque[Begun] = deque()
        self._codes: Tensor | None = None

    @torch.inference_mode()
    def launch(self) -> None:
        if self._codes is not None:
            self.step()
        self.predict()
        self._begun.append(Begun(Frame(self._codes, self._hidden)))

    def step(self) -> None:
        """The talker reads the newest frame."""
        if self._length == self._lane.cache.capacity:
            self._lengthen()
        self._hidden, self._position = self._lane.step(self._codes, next(self._overlays), self._position)
        self._length += 1

    def predict(self) -> None:
        """All books of the next frame."""
        uniforms, forbidden = self._chances.next()
        self._codes, self._chances.seen = self._code_frame(self._hidden, self._chances.seen, forbidden, uniforms)

    def _lengthen(self) -> None:
        short, self._lane = self._lane, self._shared.lane(self._length + 1)
        for old, new in ((short.cache.k, self._lane.cache.k), (short.cache.v, self._lane.cache.v)):
            new[:, :, :self._length] = old
        self._shared.release(short)

    def token(self) -> int:
        self._oldest = self._begun.popleft()
        return self._oldest.token()

    def frame(self) -> Frame:
        return self._oldest.frame

    def close(self) -> None:
        self._shared.release(self._lane)


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
