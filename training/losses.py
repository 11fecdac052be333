"""What sound and features are compared by."""

import torch
import torch.nn.functional as F
from torch import Tensor

from training.features import MEL_SPREAD, PITCH_SPREAD, RATE, filterbank, magnitudes

_RESOLUTIONS = (256, 512, 1024, 2048)           # samples of a window, a quarter of it apart
_BANDS = {512: 40, 1024: 80, 2048: 128}
_STFT_FLOOR, _MEL_FLOOR = 0.03, 0.01            # soft: what is quieter hardly counts
START = 30 * RATE // 1000                       # samples in which a click at the start would be


def feature_losses(rows: Tensor, target: Tensor, weight: Tensor) -> dict[str, Tensor]:
    """Differences of feature rows [B, 82, n]; weight [B, 1, n] says which columns count.

    mel      mean absolute difference of the normalised log-mel
    edges    the same of its slopes in time and in frequency, which L1 alone blurs
    pitch    of the normalised pitch, where voiced
    voicing  mean square
    """
    def mean(x: Tensor, w: Tensor) -> Tensor:
        return (x * w).sum() / (w.expand_as(x).sum() + 1e-6)

    difference, voiced = rows[:, :-2] - target[:, :-2], target[:, -1:]
    return {"mel": mean(difference.abs(), weight),
            "edges": mean((difference[..., 2:] - difference[..., :-2]).abs(), weight[..., 1:-1])
            + mean((difference[:, 1:] - difference[:, :-1]).abs(), weight),
            "pitch": mean((rows[:, -2:-1] - target[:, -2:-1]).abs(), weight * voiced),
            "voicing": mean((rows[:, -1:] - voiced).square(), weight)}


def sound_losses(samples: Tensor, target: Tensor) -> dict[str, Tensor]:
    """Differences of sound [B, n], before which there is silence: windows reach into it, so that the first samples
    count as much as all others.

    stft  log magnitudes and spectral convergence (over the batch: a silent item has nothing to be divided by), the
          mean of four resolutions
    mel   log-mel, the mean of three
    """
    stft = mel = samples.new_zeros(())
    for n_fft in _RESOLUTIONS:
        ours, theirs = (magnitudes(F.pad(x, (n_fft // 2, 0)), n_fft, n_fft // 4).clamp(min=5e-4)
                        for x in (samples, target))
        stft = stft + ((ours + _STFT_FLOOR).log() - (theirs + _STFT_FLOOR).log()).abs().mean()
        stft = stft + (ours - theirs).norm() / (theirs.norm() + 1)
        if n_fft in _BANDS:
            bank = filterbank(n_fft, _BANDS[n_fft]).to(samples.device)
            mel = mel + ((bank @ ours + _MEL_FLOOR).log() - (bank @ theirs + _MEL_FLOOR).log()).abs().mean()
    return {"stft": stft / len(_RESOLUTIONS), "mel": mel / len(_BANDS)}


def start_loss(samples: Tensor, target: Tensor) -> Tensor:
    """How much of the first 30 ms of utterances [B, n] is louder than anything there is in the real ones, on average.

    The soft floors of `sound_losses` hide a click in silence."""
    return (samples[:, :START].abs() - target[:, :START].abs().amax(1, keepdim=True)).relu().mean()


def feature_figures(rows: Tensor, target: Tensor) -> dict[str, float]:
    """Feature rows [1, 82, n] of much speech as figures people know.

    mel_l1       of natural log-mel
    pitch_r2     share of the variance of log pitch that is right, where both are voiced: elsewhere sound has no pitch,
                 and what stands in its place is only filled in
    pitch_error  median, semitones, at the same places
    voicing      share of columns where voicing agrees

    Without the two of pitch, where no pitch that varies is voiced in both.
    """
    heard, voiced = (x[:, -1] > 0.5 for x in (rows, target))
    both = heard & voiced
    found, true = rows[:, -2][both] * PITCH_SPREAD, target[:, -2][both] * PITCH_SPREAD
    figures = {"mel_l1": float(F.l1_loss(rows[:, :-2], target[:, :-2]) * MEL_SPREAD)}
    if (variance := (true - true.mean()).square().mean()) > 0:  # that of nothing is nan
        error = (found - true).abs() * 12 / torch.tensor(2.0).log()
        figures |= {"pitch_r2": float(1 - F.mse_loss(found, true) / variance), "pitch_error": float(error.median())}
    return figures | {"voicing": float((heard == voiced).float().mean())}
