"""The codec's training side: an encoder from features to codes, and ways through the shipped decoder."""

import hashlib
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training import batched
from training.features import COLUMNS, PACKED, ROWS, unpack
from training.loop import fill
from training.model import BOOKS, Nano, Speech, code2wav_config, initialize
from tts_cli.qwen3tts.code2wav import Code2Wav
from tts_cli.qwen3tts.layers import StreamState

_BACK = ("entry.", "decoder.", "post_")     # parameters of the convolutional half
_TABLES = ("first_codebook", "rest_")       # set at export


class _Residual(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.norm = nn.GroupNorm(1, channels)
        self.mix = nn.Conv1d(channels, channels, 5, padding=2)
        self.out = nn.Conv1d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.out(F.gelu(self.mix(self.norm(x))))


class Encoder(nn.Module):
    """Feature rows [B, 82, 8 n] -> what is to be quantised [B, n, dims]. It may look ahead: it is never shipped."""

    def __init__(self, dims: int, channels: int = 192):
        super().__init__()
        halve = [layer for _ in range(COLUMNS.bit_length() - 1)
                 for layer in (nn.Conv1d(channels, channels, 4, 2, 1), _Residual(channels))]
        self.layers = nn.Sequential(
            nn.Conv1d(ROWS, channels, 5, padding=2), _Residual(channels), *halve, _Residual(channels),
            _Residual(channels), nn.GroupNorm(1, channels), nn.Conv1d(channels, dims, 1))

    def forward(self, rows: Tensor) -> Tensor:
        heard = torch.cat((rows[:, :-2], rows[:, -2:-1] * rows[:, -1:], rows[:, -1:]), 1)  # no pitch where unvoiced
        return self.layers(heard).mT


class Codec(nn.Module):
    """Encoder, quantiser and the shipped `Code2Wav`."""

    def __init__(self, nano: Nano, device: str = "cpu"):
        super().__init__()
        self.nano, self.fsq = nano, nano.fsq(device)
        self.encoder = Encoder(self.fsq.dims, nano.values["codec"].get("encoder", 192))
        self.code2wav = Code2Wav(code2wav_config(nano))
        initialize(self.code2wav)
        self.to(device)

    def front(self) -> list[tuple[str, nn.Parameter]]:
        """The decoder's parameters up to the features."""
        return [(n, p) for n, p in self.code2wav.named_parameters() if not n.startswith((*_BACK, *_TABLES))]

    def back(self) -> list[tuple[str, nn.Parameter]]:
        """Those from the features to sound."""
        return [(n, p) for n, p in self.code2wav.named_parameters() if n.startswith(_BACK)]

    def digest(self) -> str:
        """Of all that decides the codes of speech."""
        found = hashlib.sha256(repr(self.nano.values["codec"]["books"]).encode())
        for name, value in sorted(self.encoder.state_dict().items()):
            found.update(name.encode() + value.cpu().numpy().tobytes())
        return found.hexdigest()[:32]

    def quantize(self, rows: Tensor) -> Tensor:
        """Feature rows [B, 82, 8 n] -> values [B, n, dims], each one of its levels; see `FSQ.quantize`."""
        return self.fsq.quantize(self.encoder(rows))

    def features(self, values: Tensor) -> Tensor:
        """Quantised values [B, n, dims] -> features [B, latent, 4 n], the first of them those of `features.pack`."""
        width = self.code2wav.config.codebook_width
        return batched.features(self.code2wav, F.linear(F.pad(values, (0, width - self.fsq.dims)),
                                                        self.code2wav.first_proj))

    @torch.no_grad()
    def encode(self, rows: Tensor) -> Tensor:
        """Rows of one utterance [1, 82, 8 n] -> codes int64 [n, 16], 0 in the books the quantiser does not have."""
        codes = self.fsq.encode(self.quantize(rows))[0]
        return F.pad(codes, (0, BOOKS - codes.shape[-1]))

    @torch.no_grad()
    def speak(self, codes: Tensor) -> Tensor:
        """Codes [n, 16] -> samples [1920 n], the way the product does it. The tables must be set."""
        return self.code2wav.push(codes, StreamState())


def feature_rows(features: Tensor) -> Tensor:
    """Features [B, latent, 4 n] -> the rows [B, 82, 8 n] they hold."""
    return unpack(features[:, :PACKED])


def load_codec(nano: Nano, stage: Path) -> Codec:
    """The codec of a stage's folder or file, on the CPU, its tables set. Raises what `loop.fill` does."""
    from training.export import set_codebooks

    codec = Codec(nano)
    fill(dict(encoder=codec.encoder, code2wav=codec.code2wav), stage)
    speech = Speech(nano)
    speech.code2wav = codec.code2wav
    set_codebooks(nano, speech)
    return codec.eval()
