"""The log-mel spectrogram the speaker encoder reads."""

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

SAMPLE_RATE = 24000
N_FFT = 1024
HOP = 256                       # 10.7 ms
PAD = (N_FFT - HOP) // 2        # reflected on both sides; a clip must be longer than this
MELS = 128
F_MAX = 12000.0                 # Hz
# The encoder's widest reflection (stem: 2, blocks: up to 4 columns) needs more frames than it reflects.
MIN_FRAMES = 5
MIN_SAMPLES = MIN_FRAMES * HOP  # n samples give floor(n / HOP) frames here


def log_mel(samples: Tensor) -> Tensor:
    """Mono 24 kHz float32 [n], n >= MIN_SAMPLES -> ln of the mel magnitudes, float32 [128, n // 256]."""
    padded = F.pad(samples[None], (PAD, PAD), mode="reflect")[0]
    window = torch.hann_window(N_FFT, periodic=True, device=samples.device)
    spectrum = torch.stft(padded, N_FFT, HOP, window=window, center=False, return_complex=True)
    magnitude = (spectrum.real.square() + spectrum.imag.square() + 1e-9).sqrt()
    return (mel_filters().to(samples.device) @ magnitude).clamp(min=1e-5).log()


@lru_cache(maxsize=1)
def mel_filters() -> Tensor:
    """Triangles on the Slaney mel scale, each of unit area in Hz: float32 [128, 513]."""
    points = _mel_to_hz(torch.linspace(0, _hz_to_mel(F_MAX), MELS + 2, dtype=torch.float64))
    bins = torch.linspace(0, SAMPLE_RATE / 2, N_FFT // 2 + 1, dtype=torch.float64)
    low, centre, high = (points[i:i + MELS, None] for i in range(3))
    triangles = torch.minimum((bins - low) / (centre - low), (high - bins) / (high - centre)).clamp(min=0)
    return (triangles * 2 / (high - low)).float()


# Slaney's scale: linear (15 mels per 1000 Hz) below 1 kHz, then 27 mels per factor 6.4.
def _hz_to_mel(hz: float) -> float:
    return 15 + 27 * math.log(hz / 1000) / math.log(6.4)  # only asked for above 1 kHz


def _mel_to_hz(mel: Tensor) -> Tensor:
    return torch.where(mel < 15, mel * 1000 / 15, 1000 * torch.exp((mel - 15) * math.log(6.4) / 27))
