"""The speaker encoder: an ECAPA-TDNN (Desplanques et al. 2020) from log-mel frames to an x-vector."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_cli.qwen3tts.layers import weight


@dataclass(frozen=True)
class SpeakerEncoderConfig:
    """Channel counts come from tensor shapes; the defaults are what no shape tells."""

    mels: int
    channels: int           # of the stem and the three blocks
    pooled_channels: int    # after the multi-layer aggregation
    attention: int
    squeeze: int
    output: int             # x-vector length = talker hidden
    res2net_scale: int = 8
    dilations: tuple[int, ...] = (2, 3, 4)
    variance_floor: float = 1e-12


class SameConv(nn.Module):
    """Conv1d over [C, T] that keeps T by reflecting the signal at both ends."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, dilation: int = 1):
        super().__init__()
        self.weight = weight(outputs, inputs, kernel)
        self.bias = weight(outputs)
        self.dilation, self.pad = dilation, (kernel - 1) * dilation // 2

    def forward(self, x: Tensor) -> Tensor:
        if self.pad:
            x = F.pad(x, (self.pad, self.pad), mode="reflect")
        return F.conv1d(x[None], self.weight, self.bias, dilation=self.dilation)[0]


class SERes2Block(nn.Module):
    """1x1, Res2Net chain of dilated convolutions over channel groups, 1x1, squeeze-and-excitation, residual."""

    def __init__(self, c: SpeakerEncoderConfig, dilation: int):
        super().__init__()
        group = c.channels // c.res2net_scale
        self.conv_pw1 = SameConv(c.channels, c.channels)
        self.res2 = nn.ModuleList(SameConv(group, group, 3, dilation) for _ in range(c.res2net_scale - 1))
        self.conv_pw2 = SameConv(c.channels, c.channels)
        self.se_conv1 = SameConv(c.channels, c.squeeze)
        self.se_conv2 = SameConv(c.squeeze, c.channels)

    def forward(self, x: Tensor) -> Tensor:
        first, *groups = F.relu(self.conv_pw1(x)).chunk(len(self.res2) + 1)
        outputs, previous = [first], None
        for conv, group in zip(self.res2, groups, strict=True):
            previous = F.relu(conv(group if previous is None else group + previous))
            outputs.append(previous)
        y = F.relu(self.conv_pw2(torch.cat(outputs)))
        scale = self.se_conv2(F.relu(self.se_conv1(y.mean(-1, keepdim=True)))).sigmoid()
        return x + y * scale


class SpeakerEncoder(nn.Module):
    def __init__(self, config: SpeakerEncoderConfig):
        super().__init__()
        c = self.config = config
        self.stem = SameConv(c.mels, c.channels, 5)
        self.blocks = nn.ModuleList(SERes2Block(c, dilation) for dilation in c.dilations)
        self.aggregate = SameConv(len(c.dilations) * c.channels, c.pooled_channels)
        self.asp_tdnn = SameConv(3 * c.pooled_channels, c.attention)
        self.asp_attn = SameConv(c.attention, c.pooled_channels)
        self.output = SameConv(2 * c.pooled_channels, c.output)

    def forward(self, mel: Tensor) -> Tensor:
        """Log-mel [mels, frames] -> x-vector [output], not normalised."""
        x, outputs = F.relu(self.stem(mel)), []
        for block in self.blocks:
            x = block(x)
            outputs.append(x)
        x = F.relu(self.aggregate(torch.cat(outputs)))
        return self.output(self._pool(x)[:, None])[:, 0]

    def _pool(self, x: Tensor) -> Tensor:
        """Attentive statistics pooling (Okabe et al. 2018): [C, T] -> weighted mean and deviation, [2C]."""
        uniform = torch.full_like(x[:1], 1 / x.shape[-1])
        context = torch.cat([s[:, None].expand_as(x) for s in self._statistics(x, uniform)])
        attention = self.asp_attn(F.relu(self.asp_tdnn(torch.cat((x, context)))).tanh()).softmax(-1)
        return torch.cat(self._statistics(x, attention))

    def _statistics(self, x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        mean = (weights * x).sum(-1)
        variance = (weights * (x - mean[:, None]).square()).sum(-1)
        return mean, variance.clamp(min=self.config.variance_floor).sqrt()
