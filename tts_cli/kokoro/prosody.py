"""How long each token lasts, how high and how loud each frame is (StyleTTS 2, Li et al. 2023)."""

import torch
from torch import Tensor, nn

from tts_cli.kokoro.config import KokoroConfig
from tts_cli.kokoro.layers import AdaINBlock, AdaLayerNorm, BiLSTM, Conv, Linear


def with_style(x: Tensor, style: Tensor) -> Tensor:
    """[n, C], [S] -> [n, C + S]."""
    return torch.cat((x, style.expand(len(x), -1)), 1)


class DurationEncoder(nn.Module):
    """LSTMs and style-conditioned norms; every round, and the output, carries the style as extra channels."""

    def __init__(self, c: KokoroConfig):
        super().__init__()
        self.lstms = nn.ModuleList(BiLSTM(c.hidden + c.style, c.hidden) for _ in range(c.layers))
        self.norms = nn.ModuleList(AdaLayerNorm(c.hidden, c.style) for _ in range(c.layers))

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        """[n, hidden] -> [n, hidden + style]."""
        x = with_style(x, style)
        for lstm, norm in zip(self.lstms, self.norms, strict=True):
            x = with_style(norm(lstm(x), style), style)
        return x


class Curve(nn.Module):
    """One value per half frame: [T, hidden] -> [2T]."""

    def __init__(self, c: KokoroConfig):
        super().__init__()
        half = c.hidden // 2
        self.blocks = nn.ModuleList((AdaINBlock(c.hidden, c.hidden, c.style),
                                     AdaINBlock(c.hidden, half, c.style, double=True),
                                     AdaINBlock(half, half, c.style)))
        self.out = Conv(half, 1)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, style)
        return self.out(x)[:, 0]


class Prosody(nn.Module):
    """The style of every method is the prosody half of a voice's row."""

    def __init__(self, c: KokoroConfig):
        super().__init__()
        self.encoder = DurationEncoder(c)
        self.lstm = BiLSTM(c.hidden + c.style, c.hidden)
        self.duration = Linear(c.hidden, c.max_duration)
        self.shared = BiLSTM(c.hidden + c.style, c.hidden)
        self.f0 = Curve(c)
        self.energy = Curve(c)

    def duration_logits(self, encoded: Tensor) -> Tensor:
        """The encoder's [n, hidden + style] -> [n, max_duration]."""
        return self.duration(self.lstm(encoded))

    def curves(self, frames: Tensor, style: Tensor) -> tuple[Tensor, Tensor]:
        """The encoding of each frame's token, [T, hidden + style] -> F0 in Hz [2T] and energy [2T]."""
        shared = self.shared(frames)
        return self.f0(shared, style), self.energy(shared, style)


def frames_per_token(logits: Tensor, speed: float) -> Tensor:
    """[n, max_duration] -> int64 [n]: the sum of the sigmoids over speed, halves to even, at least one frame."""
    return (logits.sigmoid().sum(-1) / speed).round().clamp(min=1).long()
