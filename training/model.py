"""The nano model as one set of modules, those that `tts_cli.qwen3tts` runs, with its sizes from a TOML file.

    python -m training.model configs/training/nano.toml     # how many parameters each part has
"""

import argparse
import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from training.fsq import FSQ
from training.loop import command
from tts_cli.audio.mel import MELS
from tts_cli.qwen3tts.code2wav import CausalConv, Code2Wav, Code2WavConfig, ConvNeXt, Snake
from tts_cli.qwen3tts.code_predictor import CodePredictor
from tts_cli.qwen3tts.convert.config import ModelConfig, Section, read_config
from tts_cli.qwen3tts.convert.names import Decoder
from tts_cli.qwen3tts.layers import TransformerConfig
from tts_cli.qwen3tts.speaker_encoder import SpeakerEncoder, SpeakerEncoderConfig
from tts_cli.qwen3tts.talker import Talker

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

BOOKS, CODEC_ROWS, CONTEXT = 16, 3072, 4096
CODEC_IDS = dict(codec_pad_id=2148, codec_bos_id=2149, codec_eos_token_id=2150, codec_think_id=2154,
                 codec_nothink_id=2155, codec_think_bos_id=2156, codec_think_eos_id=2157)
# Text tokens behind the byte pairs; the real models' prompt needs these.
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>")
USES = ("single_voice", "text_mode", "max_chars", "plain_english")  # of `ModelConfig`
PREDICTOR_THETA = 1e6  # llama.cpp's constant


@dataclass(frozen=True)
class Nano:
    """The sizes of a model. `text_vocab`: byte pairs and control tokens."""

    values: dict
    path: Path

    @classmethod
    def read(cls, path: str | Path) -> "Nano":
        """Raises `OSError`, and `ValueError` for what is no TOML or does not fit the architecture."""
        nano = cls(tomllib.loads(Path(path).read_text(encoding="utf-8")), Path(path))
        if unknown := nano.values["use"].keys() - USES:
            raise ValueError(f"{path}: use.{min(unknown)}: it may say {', '.join(USES)}")
        fsq, codec = nano.fsq(), nano.values["codec"]
        if not 2 <= len(fsq.books) <= BOOKS:
            raise ValueError(f"{path}: codec.books: {len(fsq.books)} books, expected 2 to {BOOKS}")
        fsq.tables(codec["codes"], codec["codebook_width"])
        return nano

    def fsq(self, device: torch.device | str = "cpu") -> FSQ:
        return FSQ(self.values["codec"]["books"], device)

    @property
    def text_vocab(self) -> int:
        return self.values["text"]["tokens"] + len(CONTROL_TOKENS)

    def checkpoint_config(self) -> ModelConfig:
        """The model as the converter knows one: what a published checkpoint's JSON files would say."""
        v, c, speaker = self.values, self.values["codec"], self.values["speaker"]["channels"]

        def decoder(values: dict, theta: float, vocab: int) -> dict:
            return dict(hidden_size=values["hidden"], intermediate_size=values["intermediate"],
                        num_hidden_layers=values["layers"], num_attention_heads=values["heads"],
                        num_key_value_heads=values["kv_heads"], head_dim=values["head_dim"], rms_norm_eps=1e-6,
                        rope_theta=theta, vocab_size=vocab)

        talker = v["talker"]
        half = talker["head_dim"] // 2
        sections = [half - 2 * (half // 3), half // 3, half // 3]  # llama.cpp asks for them; all three are one position
        root = dict(
            model_type="qwen3_tts", tts_model_type="base", tts_model_size="nano",
            talker_config=decoder(talker, talker["rope_theta"], CODEC_ROWS) | CODEC_IDS | dict(
                num_code_groups=BOOKS, text_vocab_size=self.text_vocab, text_hidden_size=talker["hidden"],
                hidden_act="silu", max_position_embeddings=CONTEXT, rope_scaling=dict(mrope_section=sections),
                codec_language_id=v["text"]["languages"],
                code_predictor_config=decoder(v["predictor"], PREDICTOR_THETA, c["codes"])),
            speaker_encoder_config=dict(
                enc_dim=talker["hidden"], enc_channels=[speaker] * 4 + [3 * speaker],
                enc_attention_channels=v["speaker"]["attention"], enc_se_channels=v["speaker"]["squeeze"]))
        wav = dict(hidden_size=c["hidden"], intermediate_size=c["intermediate"], num_hidden_layers=8,
                   num_attention_heads=16, num_key_value_heads=16, head_dim=c["head_dim"], codebook_size=c["codes"],
                   codebook_dim=2 * c["codebook_width"], num_quantizers=BOOKS, latent_dim=c["latent"],
                   decoder_dim=c["decoder"], upsample_rates=[8, 5, 4, 3], upsampling_ratios=[2, 2],
                   sliding_window=72, rms_norm_eps=1e-5, rope_theta=1e4)
        where = str(self.path)
        config = read_config(Section(root, where), Section(dict(decoder_config=wav), where),
                             Section(v["sampling"], where))
        return replace(config, **v["use"])


def code2wav_config(nano: Nano) -> Code2WavConfig:
    """The decoder's sizes, as the product reads them from a file."""
    c = nano.values["codec"]
    return Code2WavConfig(books=BOOKS, codes=c["codes"], codebook_width=c["codebook_width"],
                          width=2 * c["codebook_width"], latent=c["latent"], hidden=c["hidden"],
                          intermediate=c["intermediate"], decoder=c["decoder"], head_dim=c["head_dim"])


class Speech(nn.Module):
    """Everything that goes into the pair. `text_embedding` is the projected table, as files have it."""

    def __init__(self, nano: Nano):
        super().__init__()
        dims = nano.checkpoint_config().dims
        hidden, s = dims.talker.hidden, dims.speaker
        self.code2wav = Code2Wav(code2wav_config(nano))
        talker = _transformer(dims.talker, nano.values["talker"]["rope_theta"])
        self.talker = Talker(talker, dims.codec_vocab, torch.float32)
        self.predictor = CodePredictor(_transformer(dims.predictor, PREDICTOR_THETA), hidden, dims.codec_vocab, BOOKS,
                                       dims.predictor_vocab, dims.predictor.hidden != hidden, torch.float32)
        self.speaker_encoder = SpeakerEncoder(SpeakerEncoderConfig(
            mels=MELS, channels=s.channels[0], pooled_channels=s.channels[-1], attention=s.attention,
            squeeze=s.squeeze, output=hidden))
        self.text_embedding = nn.Embedding(nano.text_vocab, hidden)
        initialize(self)


def _transformer(d: Decoder, theta: float) -> TransformerConfig:
    return TransformerConfig(d.hidden, d.intermediate, d.layers, d.heads, d.kv_heads, d.head_dim, theta, 1e-6)


@torch.no_grad()
def initialize(model: nn.Module) -> None:
    """Draw all weights anew, from torch's generator, and let them be trained."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(True)
        _draw(parameter, name)
    for module in model.modules():
        if isinstance(module, CausalConv):  # torch's own choice for convolutions
            nn.init.kaiming_uniform_(module.weight, a=math.sqrt(5))
        elif isinstance(module, Snake):
            module.alpha.fill_(1)
            module.beta.fill_(1)
        elif isinstance(module, ConvNeXt):
            module.gamma.fill_(0.3)
        elif isinstance(module, Code2Wav):
            module.post_conv.weight.mul_(0.05)  # loud noise at the start drives the first steps astray


def _draw(parameter: Tensor, name: str) -> None:
    if name.endswith("scale"):
        parameter.fill_(0.2)
    elif name.endswith("bias"):
        parameter.zero_()
    elif parameter.dim() == 1:
        parameter.fill_(1)
    elif "embedding" in name:
        parameter.normal_(std=0.02)
    else:
        parameter.normal_(std=parameter[0].numel() ** -0.5)


@command
def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m training.model", description="How many parameters each part has.")
    parser.add_argument("config", type=Path)
    model = Speech(Nano.read(parser.parse_args(arguments).config))
    for name, module in model.named_children():
        print(f"{name:<16}{sum(p.numel() for p in module.parameters()) / 1e6:6.2f} M")


if __name__ == "__main__":
    main()
