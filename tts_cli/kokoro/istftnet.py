"""iSTFTNet (Kaneko et al. 2022): from the decoder's features and a harmonic source to samples."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_cli.kokoro.config import IstftNetConfig
from tts_cli.kokoro.layers import AdaIN, Conv, Upsample, cache_blocks
from tts_cli.kokoro.source import hann


class SnakeUnit(nn.Module):
    """Twice AdaIN, Snake and a convolution, the first dilated; the residual is added."""

    def __init__(self, channels: int, style: int, kernel: int, dilation: int):
        super().__init__()
        self.norm1 = AdaIN(channels, style)
        self.alpha1 = nn.Parameter(torch.empty(channels), requires_grad=False)
        self.conv1 = Conv(channels, channels, kernel, dilation=dilation)
        self.norm2 = AdaIN(channels, style)
        self.alpha2 = nn.Parameter(torch.empty(channels), requires_grad=False)
        self.conv2 = Conv(channels, channels, kernel)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        y = self.conv1(snake(x, self.norm1.affine(x, style), self.alpha1))
        y = self.conv2(snake(y, self.norm2.affine(y, style), self.alpha2))
        return y.add_(x)


def snake(x: Tensor, affine: tuple[Tensor, Tensor], alpha: Tensor) -> Tensor:
    """y + sin^2(alpha * y) / alpha per channel (Ziyin et al. 2020) of y = x * scale + shift.

    Computed in float32 and returned in the dtype of x. The published alphas go down to 1e-4, so the cheaper
    (1 - cos) / 2 would cancel.
    """
    (scale, shift), inverse = affine, alpha.reciprocal()
    out = torch.empty_like(x)
    for rows, target in zip(cache_blocks(x), cache_blocks(out), strict=True):
        y = torch.addcmul(shift, rows, scale)
        sine = (y * alpha).sin_()
        target.copy_(y.addcmul_(sine.mul_(sine), inverse))
    return out


class SnakeBlock(nn.ModuleList):
    """One unit per dilation."""

    def __init__(self, channels: int, style: int, kernel: int, dilations: tuple[int, ...]):
        super().__init__(SnakeUnit(channels, style, kernel, dilation) for dilation in dilations)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        for unit in self:
            x = unit(x, style)
        return x


class Stage(nn.Module):
    """Upsample, add what the source says at this rate, and average blocks of several kernel sizes."""

    def __init__(self, c: IstftNetConfig, index: int, style: int):
        super().__init__()
        channels = c.channels >> (index + 1)
        stride = math.prod(c.upsample_rates[index + 1:])
        self.last = index == len(c.upsample_rates) - 1
        self.up = Upsample(2 * channels, channels, c.upsample_kernels[index], c.upsample_rates[index])
        self.source_conv = (Conv(2 * c.bins, channels) if self.last else
                            Conv(2 * c.bins, channels, 2 * stride, stride=stride, padding=stride // 2))
        self.source_block = SnakeBlock(channels, style, 11 if self.last else 7, (1, 3, 5))
        self.blocks = nn.ModuleList(SnakeBlock(channels, style, kernel, dilations)
                                    for kernel, dilations in zip(c.block_kernels, c.block_dilations, strict=True))

    def forward(self, x: Tensor, style: Tensor, har: Tensor) -> Tensor:
        x = self.upsample(x)
        x += self.source_block(self.source_conv(har), style)
        y = self.blocks[0](x, style)
        for block in self.blocks[1:]:
            y += block(x, style)
        return y.div_(len(self.blocks))

    def upsample(self, x: Tensor) -> Tensor:
        """The last stage gets one moment more, mirrored at the start: a centred STFT of n hops has n + 1 columns."""
        x = self.up(F.leaky_relu(x, 0.1))
        return torch.cat((x[1:2], x)) if self.last else x


class Generator(nn.Module):
    """The stages may convolve in bfloat16 (see `Kokoro.convolve_in`); spectra and the inverse STFT are float32."""

    def __init__(self, config: IstftNetConfig, style: int):
        super().__init__()
        c = self.config = config
        self.stages = nn.ModuleList(Stage(c, i, style) for i in range(len(c.upsample_rates)))
        self.post = Conv(c.channels >> len(c.upsample_rates), 2 * c.bins, 7)

    def forward(self, x: Tensor, style: Tensor, har: Tensor) -> Tensor:
        """Features [S, channels], timbre style, the source's spectra -> samples [S * samples_per_step].

        Peaks are around 0.5 but nothing bounds them, and weights gone wrong can overflow to infinity.
        """
        return self.inverse(self.spectrum(x, style, har))

    def spectrum(self, x: Tensor, style: Tensor, har: Tensor) -> Tensor:
        """Log magnitudes and what the phases are the sines of, side by side: [S * rates + 1, n_fft + 2] float32."""
        for stage in self.stages:
            x = stage(x, style, har)
        return self.post(F.leaky_relu_(x, 0.01))

    def inverse(self, spectrum: Tensor) -> Tensor:
        c = self.config
        magnitude, phase = spectrum.T.chunk(2)
        window = hann(c.n_fft, spectrum.device)
        return torch.istft(torch.polar(magnitude.exp(), phase.sin()), c.n_fft, c.hop, window=window)
