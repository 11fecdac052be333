"""code2wav as a stream of chunks, beside the talker where the device does two things at a time."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tts_cli.engine import AudioChunk
from tts_cli.errors import TtsError
from tts_cli.qwen3tts.code2wav import Code2Wav
from tts_cli.qwen3tts.layers import StreamState

NOT_FINITE = "the {}'s activations are not numbers; try --dtype float32, and check the model files (tts inspect)"


@dataclass
class Making:
    """A chunk that the device may still be working on. samples [n] and codes int32 [frames, books] on the host."""

    samples: Tensor
    codes: Tensor
    sample_rate: int
    finish_reason: str | None
    there: "torch.cuda.Event | None" = None

    @property
    def ready(self) -> bool:
        return self.there is None or self.there.query()

    def wait(self) -> AudioChunk:
        """Raises `TtsError` on codes that were not finite."""
        samples, codes = self.samples.numpy(), self.codes.numpy()
        if self.there is not None:
            self.there.synchronize()
            samples, codes = samples.copy(), codes.copy()  # pinned memory is scarce
        if (codes < 0).any():
            raise TtsError(NOT_FINITE.format("code predictor"))
        return AudioChunk(samples, self.sample_rate, codes, self.finish_reason)


class Vocoder:
    """One stream of sound. Frames pushed must be complete on the device.

    stream     to work on; None: the current one
    reference  codes int64 [T, books] that come before: the vocoder hears how a clip ends, so that the join has no seam
    """

    def __init__(self, code2wav: Code2Wav, stream: "torch.cuda.Stream | None" = None, reference: Tensor | None = None):
        self._code2wav, self._stream, self._state = code2wav, stream, StreamState()
        if reference is not None:
            if stream is not None:
                stream.wait_stream(torch.cuda.current_stream(stream.device))
            self.push(list(reference[-code2wav.config.window:]))

    @torch.inference_mode()
    def push(self, codes: list[Tensor], finish_reason: str | None = None) -> Making:
        """The next frames, each int64 [books]; none of them give an empty chunk."""
        rate, books = self._code2wav.config.sample_rate, self._code2wav.config.books
        if not codes:
            return Making(torch.zeros(0), torch.zeros((0, books), dtype=torch.int32), rate, finish_reason)
        if self._stream is None:
            return self._push(codes, rate, finish_reason)
        with torch.cuda.stream(self._stream):
            for frame in codes:  # they belong to another stream, which must not use their memory anew too early
                frame.record_stream(self._stream)
            return self._push(codes, rate, finish_reason)

    def _push(self, codes: list[Tensor], rate: int, finish_reason: str | None) -> Making:
        stacked = torch.stack(codes)
        samples = self._code2wav.push(stacked.clamp(min=0), self._state)
        cuda = samples.is_cuda
        there = torch.cuda.Event() if cuda else None
        making = Making(samples.to("cpu", non_blocking=cuda), stacked.int().to("cpu", non_blocking=cuda), rate,
                        finish_reason, there)
        if cuda:
            there.record(torch.cuda.current_stream(samples.device))
        return making
