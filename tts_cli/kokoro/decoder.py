"""From tokens to the vocoder's input: the acoustic text encoder and the decoder (StyleTTS 2)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_cli.kokoro.config import KokoroConfig
from tts_cli.kokoro.layers import AdaINBlock, BiLSTM, Conv, Embedding, LayerNorm


class TextEncoder(nn.Module):
    """Convolutions and an LSTM over the phonemes: what is said, without a style."""

    def __init__(self, c: KokoroConfig):
        super().__init__()
        self.embedding = Embedding(c.tokens, c.hidden)
        self.convs = nn.ModuleList(Conv(c.hidden, c.hidden, c.text_kernel) for _ in range(c.layers))
        self.norms = nn.ModuleList(LayerNorm(c.hidden) for _ in range(c.layers))
        self.lstm = BiLSTM(c.hidden, c.hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        """int64 [n] -> [n, hidden]."""
        x = self.embedding(tokens)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.leaky_relu_(norm(conv(x)), 0.2)
        return self.lstm(x)


class Decoder(nn.Module):
    """AdaIN blocks over frames; each sees F0, energy and a narrow copy of the text again."""

    def __init__(self, c: KokoroConfig):
        super().__init__()
        self.f0_down = Conv(1, 1, 3, stride=2)
        self.energy_down = Conv(1, 1, 3, stride=2)
        self.asr_residual = Conv(c.hidden, c.asr_residual)
        self.encode = AdaINBlock(c.hidden + 2, c.decoder, c.style)
        inputs = c.decoder + c.asr_residual + 2
        self.blocks = nn.ModuleList((*(AdaINBlock(inputs, c.decoder, c.style) for _ in range(3)),
                                     AdaINBlock(inputs, c.istftnet.channels, c.style, double=True)))

    def forward(self, asr: Tensor, f0: Tensor, energy: Tensor, style: Tensor) -> Tensor:
        """asr [T, hidden], F0 and energy [2T], the timbre half of the style -> [2T, channels of the vocoder]."""
        curves = torch.cat((self.f0_down(f0[:, None]), self.energy_down(energy[:, None])), 1)
        x = self.encode(torch.cat((asr, curves), 1), style)
        residual = self.asr_residual(asr)
        for block in self.blocks:
            x = block(torch.cat((x, residual, curves), 1), style)
        return x
