"""Kokoro: phoneme ids and a voice's style to samples. It knows nothing of text, languages or files."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_cli.kokoro.albert import PLBert
from tts_cli.kokoro.config import SAMPLE_RATE, KokoroConfig
from tts_cli.kokoro.decoder import Decoder, TextEncoder
from tts_cli.kokoro.istftnet import Generator
from tts_cli.kokoro.layers import Conv, Linear, Upsample
from tts_cli.kokoro.prosody import Prosody, frames_per_token
from tts_cli.kokoro.source import HarmonicSource


class Kokoro(nn.Module):
    """The whole network. Sequences are [time, channels], one utterance at a time."""

    sample_rate = SAMPLE_RATE

    def __init__(self, config: KokoroConfig):
        super().__init__()
        c = self.config = config
        self.bert = PLBert(c.tokens, c.bert)
        self.bert_projection = Linear(c.bert.hidden, c.hidden)
        self.prosody = Prosody(c)
        self.text_encoder = TextEncoder(c)
        self.decoder = Decoder(c)
        self.source = HarmonicSource(c.istftnet)
        self.generator = Generator(c.istftnet, c.style)

    def forward(self, ids: Tensor, style: Tensor, speed: float = 1.0,
                generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """ids int64 [n], 1 to `max_ids` of them, without pads; style: a voice's row [2 * style].

        Returns samples float32 [600 T] and the frames of each token, int64 [n + 2] of sum T, the pads' included.
        `generator` draws the source's noise; without one there is none.
        """
        tokens = F.pad(ids, (1, 1))
        timbre, prosody = style.split(self.config.style)
        encoded = self.encode(tokens, prosody)
        durations = frames_per_token(self.prosody.duration_logits(encoded), speed)
        f0, energy = self.prosody.curves(encoded.repeat_interleave(durations, 0), prosody)
        asr = self.text_encoder(tokens).repeat_interleave(durations, 0)
        features = self.decoder(asr, f0, energy, timbre)
        return self.generator(features, timbre, self.source(f0, generator)), durations

    def encode(self, tokens: Tensor, prosody: Tensor) -> Tensor:
        """int64 [n] with pads, the prosody half of the style -> what durations and curves are read from, [n, C]."""
        return self.prosody.encoder(self.bert_projection(self.bert(tokens)), prosody)

    def convolve_in(self, dtype: torch.dtype) -> None:
        """Convolve in `dtype` in the decoder's blocks and the vocoder's stages, nine tenths of the work.

        In bfloat16 the log-mel spectrum stays correlated to 0.9998 with that of float32 (two seeds of the noise differ
        by more), in half the time where the processor has bfloat16 products. All that decides durations and pitch,
        norms and Snake stay in float32, and so does the last convolution: its result is exponentiated, which alone
        would be ten times the error of all the others.
        """
        for part in (self.decoder.encode, self.decoder.blocks, self.generator.stages):
            for module in part.modules():
                if isinstance(module, (Conv, Upsample)):
                    module.to(dtype)
