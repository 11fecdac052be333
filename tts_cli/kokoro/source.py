"""The harmonic-plus-noise source of the vocoder (neural source-filter model, Wang et al. 2019)."""

import math

import torch
from torch import Tensor, nn

from tts_cli.kokoro.config import SAMPLE_RATE, IstftNetConfig
from tts_cli.kokoro.layers import Linear

HARMONICS = 9           # the fundamental among them
VOICED_ABOVE = 10.0     # Hz
AMPLITUDE = 0.1
VOICED_NOISE = 0.003    # standard deviation
UNVOICED_NOISE = AMPLITUDE / 3


class HarmonicSource(nn.Module):
    """Sines at the multiples of F0 where it is voiced, and noise, mixed to one signal and cut into spectra."""

    def __init__(self, config: IstftNetConfig):
        super().__init__()
        self.config = config
        self.mix = Linear(HARMONICS, 1)

    def forward(self, f0: Tensor, generator: torch.Generator | None) -> Tensor:
        """F0 in Hz [S] -> magnitudes and phases side by side, [S * samples_per_step // hop + 1, n_fft + 2]."""
        c = self.config
        spectrum = torch.stft(self.signal(f0, generator), c.n_fft, c.hop, window=hann(c.n_fft, f0.device),
                              return_complex=True).T
        return torch.cat((spectrum.abs(), spectrum.angle()), 1)

    def signal(self, f0: Tensor, generator: torch.Generator | None) -> Tensor:
        """F0 in Hz [S] -> samples [S * samples_per_step]. Without a generator there is no noise.

        The noise of the harmonics is independent and only their weighted sum is heard, so one draw of the sum's
        deviation replaces one draw per harmonic.
        """
        step = self.config.samples_per_step
        voiced = (f0 > VOICED_ABOVE).repeat_interleave(step)
        signal = (self.mix.weight[0] @ harmonics(f0, step)).mul_(AMPLITUDE).mul_(voiced).add_(self.mix.bias)
        if generator is not None:
            noise = torch.randn(len(signal), generator=generator, device=generator.device).to(signal.device)
            deviation = torch.where(voiced, VOICED_NOISE, UNVOICED_NOISE) * self.mix.weight.norm()
            signal.addcmul_(noise, deviation)
        return signal.tanh_()


def harmonics(f0: Tensor, step: int) -> Tensor:
    """F0 in Hz [S] -> sines of amplitude 1, [HARMONICS, S * step].

    A phase is exact at the middle of each of the S steps, linear in between, and constant in the outer half steps.
    It is summed in float64 and in turns modulo 1: in float32 radians it would be off by 0.01 after a few seconds.
    """
    multiples = torch.arange(1, HARMONICS + 1, dtype=torch.float64, device=f0.device)
    turns = (multiples[:, None] * f0.double() / SAMPLE_RATE % 1) * step     # of each step
    middle = (turns.cumsum(1) % 1).float()
    along = (torch.arange(step, device=f0.device) + 0.5) / step
    between = middle[:, :-1, None] + along * turns[:, 1:, None].float()
    edges = middle[:, :1].expand(-1, step // 2), middle[:, -1:].expand(-1, step - step // 2)
    phase = torch.cat((edges[0], between.flatten(1), edges[1]), 1)
    return phase.mul_(2 * math.pi).sin_()


def hann(size: int, device: torch.device) -> Tensor:
    return torch.hann_window(size, periodic=True, device=device)
