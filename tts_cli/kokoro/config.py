"""The sizes of a Kokoro model, read from the `config.json` of its checkpoint.

Three widths are fixed numbers in the published code and have no key in the published file: `decoder_dim`,
`asr_res_dim` and `plbert.embedding_size`. They are read when present, so that smaller models can be described too.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tts_cli.errors import ModelFileError

SAMPLE_RATE = 24000
_MAX_SIZE = 2**16  # a damaged number must not build modules of terabytes


@dataclass(frozen=True)
class PLBertConfig:
    """The phoneme-level ALBERT: one layer, passed `passes` times."""

    hidden: int = 768
    heads: int = 12
    intermediate: int = 2048
    positions: int = 512
    passes: int = 12
    embedding: int = 128


@dataclass(frozen=True)
class IstftNetConfig:
    upsample_rates: tuple[int, ...] = (10, 6)
    upsample_kernels: tuple[int, ...] = (20, 12)
    channels: int = 512                                  # in; halved by every upsampling
    block_kernels: tuple[int, ...] = (3, 7, 11)
    block_dilations: tuple[tuple[int, ...], ...] = ((1, 3, 5), (1, 3, 5), (1, 3, 5))
    n_fft: int = 20
    hop: int = 5

    @property
    def bins(self) -> int:
        return self.n_fft // 2 + 1

    @property
    def samples_per_step(self) -> int:
        """Samples per value of the F0 curve, which has two values per frame."""
        return math.prod(self.upsample_rates) * self.hop


@dataclass(frozen=True)
class KokoroConfig:
    """The defaults are those of Kokoro-82M."""

    tokens: int = 178
    hidden: int = 512
    style: int = 128                                     # of each half of a voice's row: timbre, prosody
    layers: int = 3                                      # of the duration encoder and of the text encoder
    max_duration: int = 50                               # frames of one token at speed 1
    text_kernel: int = 5
    decoder: int = 1024
    asr_residual: int = 64
    bert: PLBertConfig = field(default_factory=PLBertConfig)
    istftnet: IstftNetConfig = field(default_factory=IstftNetConfig)
    vocab: Mapping[str, int] = field(default_factory=dict)

    @property
    def max_ids(self) -> int:
        """Ids of one pass, without the pad before and after them."""
        return self.bert.positions - 2

    @property
    def samples_per_frame(self) -> int:
        return 2 * self.istftnet.samples_per_step

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], where: str = "config.json") -> "KokoroConfig":
        """The parsed `config.json`. Raises `ModelFileError` naming the key that is missing or out of range."""
        reader = _Reader(raw, where)
        bert, net = reader.section("plbert"), reader.section("istftnet")
        config = cls(
            tokens=reader.size("n_token"), hidden=reader.size("hidden_dim"), style=reader.size("style_dim"),
            layers=reader.size("n_layer", most=64), max_duration=reader.size("max_dur"),
            text_kernel=reader.size("text_encoder_kernel_size"), decoder=reader.size("decoder_dim", cls.decoder),
            asr_residual=reader.size("asr_res_dim", cls.asr_residual), vocab=reader.vocab(),
            bert=PLBertConfig(
                hidden=bert.size("hidden_size"), heads=bert.size("num_attention_heads"),
                intermediate=bert.size("intermediate_size"), positions=bert.size("max_position_embeddings"),
                passes=bert.size("num_hidden_layers", most=64),
                embedding=bert.size("embedding_size", PLBertConfig.embedding)),
            istftnet=IstftNetConfig(
                upsample_rates=net.sizes("upsample_rates"), upsample_kernels=net.sizes("upsample_kernel_sizes"),
                channels=net.size("upsample_initial_channel"), block_kernels=net.sizes("resblock_kernel_sizes"),
                block_dilations=net.nested("resblock_dilation_sizes"), n_fft=net.size("gen_istft_n_fft"),
                hop=net.size("gen_istft_hop_size")))
        config._check(where)
        return config

    def _check(self, where: str) -> None:
        bert, net = self.bert, self.istftnet
        stages = len(net.upsample_rates)
        rules = {
            "hidden_dim must be even": self.hidden % 2 == 0,
            "text_encoder_kernel_size must be odd": self.text_kernel % 2 == 1,
            "plbert: hidden_size must be a multiple of num_attention_heads": bert.hidden % bert.heads == 0,
            "plbert: max_position_embeddings must be at least 3": bert.positions >= 3,
            "istftnet: upsample_rates and upsample_kernel_sizes must be as many": stages == len(net.upsample_kernels),
            "istftnet: each upsample_kernel_sizes must be its rate plus an even number": all(
                kernel >= rate and (kernel - rate) % 2 == 0
                for kernel, rate in zip(net.upsample_kernels, net.upsample_rates, strict=False)),
            "istftnet: the rate of an upsampling followed by others must make an even stride": all(
                math.prod(net.upsample_rates[i:]) % 2 == 0 for i in range(1, stages)),
            f"istftnet: upsample_initial_channel must be a multiple of {2**stages}": net.channels % 2**stages == 0,
            "istftnet: resblock_kernel_sizes must be odd": all(kernel % 2 for kernel in net.block_kernels),
            "istftnet: resblock_kernel_sizes and resblock_dilation_sizes must be as many":
                len(net.block_kernels) == len(net.block_dilations),
            "istftnet: gen_istft_n_fft must be even and more than gen_istft_hop_size":
                net.n_fft % 2 == 0 and net.n_fft > net.hop,
            "vocab: ids must be below n_token": all(index < self.tokens for index in self.vocab.values()),
        }
        for rule, kept in rules.items():
            if not kept:
                raise ModelFileError(f"{where}: {rule}")


@dataclass(frozen=True)
class _Reader:
    raw: Mapping[str, Any]
    where: str

    def section(self, key: str) -> "_Reader":
        value = self._get(key)
        if not isinstance(value, Mapping):
            raise ModelFileError(f"{self.where}: {key} must be an object")
        return _Reader(value, f"{self.where}: {key}")

    def size(self, key: str, default: int | None = None, most: int = _MAX_SIZE) -> int:
        return self._size(key, self._get(key, default), most)

    def sizes(self, key: str) -> tuple[int, ...]:
        return tuple(self._size(key, item) for item in self._list(key, self._get(key)))

    def nested(self, key: str) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(self._size(key, item) for item in self._list(key, row))
                     for row in self._list(key, self._get(key)))

    def vocab(self) -> dict[str, int]:
        vocab = self._get("vocab")
        if not isinstance(vocab, Mapping) or not all(
                len(symbol) == 1 and type(index) is int and index >= 0 for symbol, index in vocab.items()):
            raise ModelFileError(f"{self.where}: vocab must map single characters to ids")
        return dict(vocab)

    def _get(self, key: str, default: Any = None) -> Any:
        value = self.raw.get(key, default)
        if value is None:
            raise ModelFileError(f"{self.where}: {key} is missing")
        return value

    def _size(self, key: str, value: Any, most: int = _MAX_SIZE) -> int:
        if type(value) is not int or not 0 < value <= most:
            raise ModelFileError(f"{self.where}: {key} = {str(value)[:40]} must be a whole number from 1 to {most}")
        return value

    def _list(self, key: str, value: Any) -> list:
        if not isinstance(value, list) or not 0 < len(value) <= 16:
            raise ModelFileError(f"{self.where}: {key} must be a list of 1 to 16 entries")
        return value
