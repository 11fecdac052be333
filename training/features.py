"""What is measured of speech: a log-mel spectrogram and the pitch, every 10 ms.

The codec's decoder is first trained to hold these in the features at 50 Hz between its transformer and its
convolutional half, two columns of 10 ms in each: `pack` and `unpack`. A codec that has them right only needs a
vocoder, and learns much faster than from sound alone.
"""

import math
from functools import lru_cache

import numpy as np
import soxr
import torch
import torch.nn.functional as F
from torch import Tensor

RATE, HOP = 24000, 240          # column i is centred on sample 240 i + 120
FRAME = 1920                    # samples per codec frame of 80 ms: 8 columns
COLUMNS = FRAME // HOP
MELS, N_FFT = 80, 1024
MEL_FLOOR = 1e-3
MEL_CENTRE, MEL_SPREAD = -3.5, 2.5          # of the log-mel values of speech, to bring them near to -1 .. 1
PITCH_CENTRE, PITCH_SPREAD = math.log(200), 0.3
ROWS = MELS + 2                 # the normalised mel, pitch and voicing
PACKED = 2 * ROWS               # features that are told what to be
MARGIN = 2                      # columns beside a crop that its spectrum touches

_PITCH_RATE, _WINDOW, _LAGS = 8000, 320, (20, 134)  # 40 ms; 400 to 60 Hz
_VOICED, _QUIET = 0.5, 0.01     # least correlation, least RMS


@lru_cache
def filterbank(n_fft: int, bands: int) -> Tensor:
    """Triangles of height 1 on the mel scale (O'Shaughnessy 1987) from 20 Hz up: [bands, n_fft // 2 + 1]."""
    hz = torch.linspace(0, RATE / 2, n_fft // 2 + 1)
    ends = torch.tensor([20.0, RATE / 2]).div(700).log1p()
    points = 700 * torch.linspace(*ends.tolist(), bands + 2).expm1()
    low, centre, high = (points[i:i + bands, None] for i in range(3))
    return torch.minimum((hz - low) / (centre - low), (high - hz) / (high - centre)).clamp(min=0)


def magnitudes(samples: Tensor, n_fft: int, hop: int) -> Tensor:
    """[B, n] -> [B, n_fft // 2 + 1, 1 + (n - n_fft) // hop], periodic Hann window."""
    window = torch.hann_window(n_fft, device=samples.device)
    return torch.stft(samples, n_fft, hop, window=window, center=False, return_complex=True).abs()


def log_mel(samples: Tensor) -> Tensor:
    """[B, 240 n] at 24 kHz -> normalised log-mel [B, 80, n]; silence is assumed around the samples."""
    side = (N_FFT - HOP) // 2
    spectrum = magnitudes(F.pad(samples, (side, side)), N_FFT, HOP)
    mel = filterbank(N_FFT, MELS).to(samples.device) @ spectrum
    return (mel.clamp(min=MEL_FLOOR).log() - MEL_CENTRE) / MEL_SPREAD


def pitch_rows(hz: Tensor) -> Tensor:
    """Pitch in Hz [B, n], negative where unvoiced (`pitch`) -> [B, 2, n]: normalised log pitch and voicing."""
    return torch.stack(((hz.abs().log() - PITCH_CENTRE) / PITCH_SPREAD, (hz > 0).float()), 1)


def pack(rows: Tensor) -> Tensor:
    """Columns of 10 ms [B, R, 2 n] -> [B, 2 R, n]: the first of each two, then the second."""
    return torch.cat((rows[..., ::2], rows[..., 1::2]), 1)


def unpack(packed: Tensor) -> Tensor:
    """The inverse of `pack`."""
    return torch.stack(packed.chunk(2, 1), -1).flatten(2)


def pitch(samples: np.ndarray) -> np.ndarray:
    """Pitch in Hz of mono 24 kHz samples, float32 [n // 240]; unvoiced stretches are filled in between, negated.

    The first strong peak of the autocorrelation, freed of the window's own (Boersma 1993). All unvoiced: -200.
    """
    columns, step = len(samples) // HOP, HOP * _PITCH_RATE // RATE
    low = soxr.resample(samples.astype(np.float32), RATE, _PITCH_RATE)
    side = (_WINDOW - step) // 2
    low = np.pad(low, (side, side + _WINDOW))
    frames = np.lib.stride_tricks.sliding_window_view(low, _WINDOW)[::step][:columns]
    loud = np.sqrt(np.square(frames).mean(1)) > _QUIET
    window = np.hanning(_WINDOW)
    own = _autocorrelation(window[None])[0]
    r = _autocorrelation((frames - frames.mean(1, keepdims=True)) * window)
    r = r / (r[:, :1] + 1e-9) / (own / own[0])
    first, end = _LAGS
    middle = r[:, first:end]
    peaks = (middle >= r[:, first - 1:end - 1]) & (middle >= r[:, first + 1:end + 1])
    heights = np.where(peaks, middle, -1)
    best = heights.max(1)
    lag = (heights >= 0.88 * best[:, None]).argmax(1) + first  # a later peak is often the octave below
    row = np.arange(len(r))
    before, here, after = r[row, lag - 1], r[row, lag], r[row, lag + 1]
    shift = np.clip((before - after) / (2 * (before - 2 * here + after) - 1e-9), -0.5, 0.5)
    voiced = _median((loud & (best > _VOICED)).astype(np.float32)) > 0.5
    voiced &= best > 0
    if not voiced.any():
        return np.full(columns, -200, np.float32)
    hz = np.interp(row, row[voiced], (_PITCH_RATE / (lag + shift))[voiced])
    return (_median(hz) * np.where(voiced, 1, -1)).astype(np.float32)


def _autocorrelation(frames: np.ndarray) -> np.ndarray:
    """Rows [n, W] -> their autocorrelation at lags 0 .. the longest pitch period + 1."""
    spectrum = np.fft.rfft(frames, 2 * frames.shape[1])
    return np.fft.irfft(spectrum.real ** 2 + spectrum.imag ** 2)[:, :_LAGS[1] + 1]


def _median(x: np.ndarray) -> np.ndarray:
    """The median of each value and its two neighbours on either side."""
    return np.median(np.lib.stride_tricks.sliding_window_view(np.pad(x, 2, mode="edge"), 5), -1)
