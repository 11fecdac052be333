"""The loop: prompt -> talker -> code predictor -> code2wav, one frame of 80 ms at a time.

`frames` makes codes, `speech` turns them into audio chunks. Everything an utterance needs between two frames lives in
these generators, so several may be run in turn on one set of models.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, repeat

import numpy as np
import torch
from torch import Tensor

from tts_cli.engine import AudioChunk, CancelToken
from tts_cli.errors import TtsError
from tts_cli.qwen3tts.code2wav import Code2Wav
from tts_cli.qwen3tts.layers import KVCache, StreamState
from tts_cli.qwen3tts.sampling import SamplingOptions, penalize_repeats, sample
from tts_cli.qwen3tts.weights import Models

MIN_TOKENS = 2  # EOS is not allowed before this many codebook-0 tokens


@dataclass(frozen=True)
class PromptRows:
    """A prompt as vectors: rows [P, H] and overlay [N, H] for the first N frames, then pad [H]; all float32.

    `prefix`: the talker's cache of the first rows, when it was read before.
    """

    rows: Tensor
    overlay: Tensor
    pad: Tensor
    prefix: KVCache | None = None


@dataclass(frozen=True)
class LoopOptions:
    talker: SamplingOptions
    predictor: SamplingOptions
    repeat_penalty: float
    eos: int
    seed: int
    max_frames: int


@dataclass(frozen=True)
class Frame:
    """codes int64 [16] and the talker hidden [H] they were predicted from, both on the model's device."""

    codes: Tensor
    hidden: Tensor


def frames(models: Models, prompt: PromptRows, options: LoopOptions, cancel: CancelToken) -> Iterator[Frame | str]:
    """Yield frames, then one finish reason: "eos", "limit" or "cancelled".

    Per frame one number goes to the host: the codebook-0 token, to see the end. Raises `TtsError` when the talker's
    activations are not finite.
    """
    device = prompt.rows.device
    generator = torch.Generator(device).manual_seed(options.seed)
    overlay = chain(prompt.overlay, repeat(prompt.pad))
    with torch.inference_mode():
        hidden, cache = models.talker.prefill(prompt.rows, options.max_frames, prompt.prefix)
        codec_vocab = len(models.talker.head)
        codes_per_book = models.predictor.embeddings.shape[1]
        seen = torch.zeros(codec_vocab, dtype=torch.bool, device=device)
        forbidden = torch.arange(codec_vocab, device=device) >= codes_per_book
        allowed_late = forbidden.clone()
        allowed_late[options.eos] = False
    for number in range(options.max_frames):
        if cancel.cancelled:
            yield "cancelled"
            return
        with torch.inference_mode():
            uniforms = torch.rand(models.predictor.heads.shape[0] + 1, generator=generator, device=device)
            logits = penalize_repeats(models.talker.logits(hidden), seen, options.repeat_penalty)
            logits = logits.masked_fill(forbidden if number < MIN_TOKENS else allowed_late, -torch.inf)
            first = sample(logits, options.talker, uniforms[0])
            token = int(first)
            if token == options.eos:
                yield "eos"
                return
            if token < 0:
                raise TtsError(_NOT_FINITE.format("talker"))
            seen[first] = True
            frame = Frame(models.predictor.predict(hidden, first, options.predictor, uniforms[1:]), hidden)
        yield frame
        if number + 1 < options.max_frames:
            with torch.inference_mode():
                hidden = models.talker.step(models.predictor.embed_frame(frame.codes) + next(overlay), cache)
    yield "limit"


def speech(models: Models, prompt: PromptRows, options: LoopOptions, chunk_frames: tuple[int, ...],
           cancel: CancelToken, reference: Tensor | None = None) -> Iterator[AudioChunk]:
    """The utterance as audio; the last chunk says why it ended.

    chunk_frames  frames per chunk, the last number repeats
    reference     codes int64 [T, 16] that the speech goes on from; none of them is in the output
    """
    sizes = chain(chunk_frames, repeat(chunk_frames[-1]))
    state = StreamState()
    pending: list[Tensor] = []
    size = next(sizes)
    if reference is not None:  # the vocoder hears how the clip ends, so that the join has no seam
        decode_chunk(models.code2wav, list(reference[-models.code2wav.config.window:]), state)
    for item in frames(models, prompt, options, cancel):
        if isinstance(item, str):
            yield decode_chunk(models.code2wav, pending if item != "cancelled" else [], state, item)
            return
        pending.append(item.codes)
        if len(pending) == size:
            yield decode_chunk(models.code2wav, pending, state)
            pending, size = [], next(sizes)


def decode_chunk(code2wav: Code2Wav, codes: list[Tensor], state: StreamState,
                 finish_reason: str | None = None) -> AudioChunk:
    """The next frames of a stream as sound; no frames give an empty chunk. Raises `TtsError` on non-finite codes."""
    rate, books = code2wav.config.sample_rate, code2wav.config.books
    if not codes:
        return AudioChunk(np.zeros(0, np.float32), rate, np.zeros((0, books), np.int32), finish_reason)
    with torch.inference_mode():
        stacked = torch.stack(codes)
        samples = code2wav.push(stacked.clamp(min=0), state).cpu().numpy()
        host = stacked.int().cpu().numpy()
    if (host < 0).any():
        raise TtsError(_NOT_FINITE.format("code predictor"))
    return AudioChunk(samples, rate, host, finish_reason)


_NOT_FINITE = ("the {}'s activations are not numbers; try --dtype float32, and check the model files (tts inspect)")
