"""The loop: prompt -> talker -> code predictor -> code2wav, one frame of 80 ms at a time.

`frames` makes codes, `speech` turns them into audio chunks. Everything an utterance needs between two frames lives in
these generators, so several may be run in turn on one set of models.
"""

import contextlib
from collections import deque
from collections.abc import Iterator
from itertools import chain, repeat

from torch import Tensor

from tts_cli.engine import AudioChunk, CancelToken
from tts_cli.errors import TtsError
from tts_cli.qwen3tts.batched_steps import BatchedSteps
from tts_cli.qwen3tts.static_steps import StaticSteps
from tts_cli.qwen3tts.steps import Frame, LoopOptions, ModuleSteps, PromptRows
from tts_cli.qwen3tts.vocoder import NOT_FINITE, Making, Vocoder
from tts_cli.qwen3tts.weights import Models


def frames(models: Models, prompt: PromptRows, options: LoopOptions, cancel: CancelToken,
           in_turns: bool = False) -> Iterator[Frame | str]:
    """Yield frames, then one finish reason: "eos", "limit" or "cancelled". `in_turns`: see `SpeechRequest`.

    Per frame one number is looked at on the host: the codebook-0 token, to see the end. Raises `TtsError` when the
    talker's activations are not finite.
    """
    if models.static:
        steps = StaticSteps(models, prompt, options, in_turns)
    else:
        steps = (BatchedSteps if in_turns and models.batch else ModuleSteps)(models, prompt, options)
    with contextlib.closing(steps):
        for number in range(options.max_frames + steps.lag):
            if cancel.cancelled:
                yield "cancelled"
                return
            if number < options.max_frames:
                steps.launch()
            if number < steps.lag:
                continue
            token = steps.token()
            if token == options.eos:
                yield "eos"
                return
            if token < 0:
                raise TtsError(NOT_FINITE.format("talker"))
            yield steps.frame()
    yield "limit"


def speech(models: Models, prompt: PromptRows, options: LoopOptions, chunk_frames: tuple[int, ...],
           cancel: CancelToken, reference: Tensor | None = None, in_turns: bool = False) -> Iterator[AudioChunk]:
    """The utterance as audio; the last chunk says why it ended.

    chunk_frames  frames per chunk, the last number repeats
    reference     codes int64 [T, 16] that the speech goes on from; none of them is in the output
    in_turns      see `SpeechRequest`
    """
    sizes = chain(chunk_frames, repeat(chunk_frames[-1]))
    vocoder = Vocoder(models.code2wav, models.static and models.static.vocoder_stream, reference)
    pending: list[Tensor] = []
    making: deque[Making] = deque()
    size = next(sizes)
    for item in frames(models, prompt, options, cancel, in_turns):
        if isinstance(item, str):
            if item == "cancelled":
                making.clear()
                pending.clear()
            making.append(vocoder.push(pending, item))
            yield from (chunk.wait() for chunk in making)
            return
        pending.append(item.codes)
        if len(pending) == size:
            making.append(vocoder.push(pending))
            pending, size = [], next(sizes)
        elif in_turns:
            yield vocoder.push([]).wait()
        while making and making[0].ready:
            yield making.popleft().wait()
