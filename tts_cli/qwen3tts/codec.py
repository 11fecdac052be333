"""The codec half of an mmproj file by itself: codes to sound, and a clip to its x-vector or its codes."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tts_cli.audio.mel import MIN_SAMPLES, SAMPLE_RATE, log_mel
from tts_cli.device import resolve_device
from tts_cli.engine import CHUNK_FRAMES, AudioChunk
from tts_cli.errors import TtsError, UsageError
from tts_cli.gguf.file import GGUFFile
from tts_cli.qwen3tts.code2wav import Code2Wav
from tts_cli.qwen3tts.pair import open_mmproj
from tts_cli.qwen3tts.speaker_encoder import SpeakerEncoder
from tts_cli.qwen3tts.vocoder import Vocoder
from tts_cli.qwen3tts.weights import load_codec, load_codec_encoder

NO_CODEC_ENCODER = ("{} has no codec encoder, which cloning from a transcript needs (llama.cpp leaves it out): make "
                    "the pair from the Base checkpoint folder with `tts convert`, or leave the transcript out")


@dataclass(frozen=True)
class Codec:
    """Created by `open_codec`."""

    file: GGUFFile
    code2wav: Code2Wav
    speaker_encoder: SpeakerEncoder | None
    device: torch.device

    def decode(self, codes: np.ndarray) -> Iterator[AudioChunk]:
        """Codes int [T, books] -> chunks, the last with finish reason "eos". Raises `UsageError` for bad codes."""
        c = self.code2wav.config
        if codes.ndim != 2 or codes.shape[1] != c.books or not np.issubdtype(codes.dtype, np.integer):
            raise UsageError(f"codes: expected integers of shape [frames, {c.books}], got {codes.dtype} {codes.shape}")
        if not len(codes) or codes.min() < 0 or codes.max() >= c.codes:
            raise UsageError(f"codes: expected at least one frame of values 0 to {c.codes - 1}")
        return self._decode(torch.from_numpy(codes.astype(np.int64)).to(self.device))

    def _decode(self, codes: torch.Tensor) -> Iterator[AudioChunk]:
        vocoder, size = Vocoder(self.code2wav), CHUNK_FRAMES[-1]
        for start in range(0, len(codes), size):
            last = start + size >= len(codes)
            yield vocoder.push(list(codes[start:start + size]), "eos" if last else None).wait()

    def embed(self, clip: np.ndarray) -> np.ndarray:
        """Mono 24 kHz float32 -> x-vector float32 [H]. Raises `UsageError` when the file has no speaker encoder."""
        if self.speaker_encoder is None:
            raise UsageError("this mmproj has no speaker encoder; use one of a Base checkpoint")
        return embed_clip(self.speaker_encoder, clip, self.device)

    def encode(self, clip: np.ndarray) -> np.ndarray:
        """Mono 24 kHz float32 [n] -> codes int32 [ceil(n / 1920), books]. See `encode_clip`."""
        return encode_clip(self.file, clip, self.device)


def open_codec(mmproj: str | Path, *, device: str = "auto") -> Codec:
    """Load the codec half of an mmproj file. Raises `UsageError` or `ModelFileError`."""
    where = resolve_device(device)
    file = open_mmproj(mmproj)
    return Codec(file, *load_codec(file, where), where)


def embed_clip(encoder: SpeakerEncoder, clip: np.ndarray, device: torch.device) -> np.ndarray:
    """The x-vector of a mono 24 kHz clip. Raises `UsageError` when it is too short, `TtsError` for broken weights."""
    if len(clip) < MIN_SAMPLES:
        raise UsageError(f"reference clip: {len(clip)} samples are too few, the speaker encoder needs at least "
                         f"{MIN_SAMPLES} ({1000 * MIN_SAMPLES / SAMPLE_RATE:.0f} ms)")
    with torch.inference_mode():
        xvector = encoder(log_mel(_tensor(clip, device))).cpu().numpy()
    if not np.isfinite(xvector).all():
        raise TtsError("the speaker encoder gave no numbers for this clip; check the mmproj file (tts inspect)")
    return xvector


def encode_clip(mmproj: GGUFFile, clip: np.ndarray, device: torch.device) -> np.ndarray:
    """Codes of a mono 24 kHz clip, int32 [T, books]. The encoder is read for this one use and dropped.

    Raises `UsageError` when the file has no codec encoder.
    """
    encoder = load_codec_encoder(mmproj, device)
    if encoder is None:
        raise UsageError(NO_CODEC_ENCODER.format(mmproj.path.name))
    with torch.inference_mode():
        return encoder.encode(_tensor(clip, device)).int().cpu().numpy()


def _tensor(clip: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(clip, np.float32)).to(device)
