"""Judges of sound at three resolutions of the spectrogram, against the stripes that upsampling leaves.

Small versions of the multi-resolution discriminator of UnivNet (Jang et al. 2021), on log magnitudes, with least
squares losses (Mao et al. 2017) and feature matching.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.features import magnitudes

_RESOLUTIONS = (512, 1024, 2048)
_CHANNELS = 16


class Judge(nn.Module):
    """Sound [B, n] -> outputs of each layer, the last of them scores: near 1 for what sounds real."""

    def __init__(self, n_fft: int):
        super().__init__()
        self.n_fft = n_fft
        shapes = [(1, _CHANNELS, (2, 1)), *[(_CHANNELS, _CHANNELS, (2, 2))] * 2, (_CHANNELS, _CHANNELS, (2, 1))]
        self.layers = nn.ModuleList(
            nn.utils.parametrizations.weight_norm(nn.Conv2d(i, o, (5, 3), stride, (2, 1))) for i, o, stride in shapes)
        self.score = nn.utils.parametrizations.weight_norm(nn.Conv2d(_CHANNELS, 1, 3, padding=1))

    def forward(self, samples: Tensor) -> list[Tensor]:
        x = (magnitudes(samples, self.n_fft, self.n_fft // 4)[:, None] + 1e-3).log() / 3
        outputs = []
        for layer in self.layers:
            x = F.leaky_relu(layer(x), 0.1)
            outputs.append(x)
        return [*outputs, self.score(x)]


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.judges = nn.ModuleList(Judge(n_fft) for n_fft in _RESOLUTIONS)

    def forward(self, samples: Tensor) -> list[list[Tensor]]:
        return [judge(samples) for judge in self.judges]


def judge_loss(real: list[list[Tensor]], made: list[list[Tensor]]) -> Tensor:
    """What the discriminator minimises."""
    return sum((1 - r[-1]).square().mean() + m[-1].square().mean() for r, m in zip(real, made, strict=True))


def maker_losses(real: list[list[Tensor]], made: list[list[Tensor]]) -> dict[str, Tensor]:
    """What the vocoder minimises: to be taken for real, and to have the same inner features."""
    fool = sum((1 - m[-1]).square().mean() for m in made) / len(made)
    pairs = [(a.detach(), b) for r, m in zip(real, made, strict=True) for a, b in zip(r[:-1], m[:-1], strict=True)]
    return {"fool": fool, "match": torch.stack([F.l1_loss(b, a) for a, b in pairs]).mean()}
