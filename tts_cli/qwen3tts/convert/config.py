"""The two config.json of a checkpoint, checked, as dimensions (`names.Dims`) and as GGUF metadata."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
from gguf import GGUFValueType as V

from tts_cli.errors import ModelFileError
from tts_cli.gguf.write import FILE_TYPES, KeyValue
from tts_cli.qwen3tts.convert.names import DAC_DILATIONS, Decoder, Dims, EncoderDims, SpeakerDims

MODEL_TYPES = ("base", "custom_voice", "voice_design")
# What speaker_encoder_config leaves out: the reference implementation's defaults.
_SPEAKER_DEFAULTS = dict(mel_dim=128, enc_channels=[512, 512, 512, 512, 1536], enc_kernel_sizes=[5, 3, 3, 3, 1],
                         enc_dilations=[1, 2, 3, 4, 1], enc_attention_channels=128, enc_se_channels=128,
                         enc_res2net_scale=8)
_LARGEST = 1 << 24  # no value of a real model comes near; a damaged config shall not ask for terabytes


class Section:
    """A JSON object whose fields are asked for by kind. Raises `ModelFileError` naming file, field and value."""

    def __init__(self, values: Any, where: str):
        if not isinstance(values, dict):
            raise ModelFileError(f"{where}: an object is expected, got {_short(values)}")
        self.values, self.where = values, where

    @classmethod
    def read(cls, path: Path) -> "Section":
        try:
            return cls(json.loads(path.read_text(encoding="utf-8-sig")), str(path))
        except OSError as error:
            raise ModelFileError(f"cannot read {path}: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            raise ModelFileError(f"{path} is not JSON: {error}") from error

    def section(self, name: str) -> "Section":
        return Section(self._get(name), f"{self.where}: {name}")

    def text(self, name: str) -> str:
        value = self._get(name)
        return value if isinstance(value, str) else self._refuse(name, value, "a string")

    def size(self, name: str) -> int:
        value = self._get(name)
        good = _is_int(value) and 0 < value <= _LARGEST
        return value if good else self._refuse(name, value, f"a whole number from 1 to {_LARGEST}")

    def number(self, name: str) -> float:
        value = self._get(name)
        good = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _LARGEST
        return float(value) if good else self._refuse(name, value, f"a number up to {_LARGEST}")

    def sizes(self, name: str, count: int | None = None) -> tuple[int, ...]:
        value = self._get(name)
        good = isinstance(value, list) and value and all(_is_int(n) and 0 < n <= _LARGEST for n in value)
        if not good or (count and len(value) != count):
            self._refuse(name, value, f"a list of {count or 'some'} positive whole numbers")
        return tuple(value)

    def ids(self, name: str, limit: int) -> dict[str, int]:
        """A table of names to ids below `limit`; absent or null is an empty one."""
        table = self.values.get(name) or {}
        if not isinstance(table, dict) or not all(_is_int(n) and 0 <= n < limit for n in table.values()):
            self._refuse(name, table, f"names with ids below {limit}")
        return table

    def _get(self, name: str) -> Any:
        if self.values.get(name) is None:
            raise ModelFileError(f"{self.where}: {name} is missing")
        return self.values[name]

    def _refuse(self, name: str, value: Any, wanted: str):
        raise ModelFileError(f"{self.where}: {name} must be {wanted}, not {_short(value)}")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


@dataclass(frozen=True)
class ModelConfig:
    """What conversion needs to know of one model besides its weights.

    sampling      `general.sampling.*` name to value, and sub_temp, sub_top_k, sub_top_p for the code predictor;
                  empty without a generation_config.json
    single_voice  it speaks in one voice by itself, and cannot clone
    text_mode     the layout it is used with, where that is not the one of its kind
    max_chars     how long the utterances are at most that it was trained on, where they were short
    plain_english it was trained on English words alone, without digits and signs
    """

    dims: Dims
    root: Section = field(repr=False)
    codec: Section = field(repr=False)
    model_type: str
    model_size: str
    activation: str
    sampling: dict[str, float] = field(default_factory=dict)
    single_voice: bool = False
    text_mode: str | None = None
    max_chars: int | None = None
    plain_english: bool = False

    @property
    def talker(self) -> Section:
        return self.root.section("talker_config")

    @property
    def eos_row(self) -> int:
        """Row of the codec vocabulary that ends an utterance."""
        return self.talker.size("codec_eos_token_id")


def read_config(root: Section, codec: Section, generation: Section | None = None) -> ModelConfig:
    """Check the checkpoint's config.json, speech_tokenizer/config.json and generation_config.json.

    Raises `ModelFileError` naming the field.
    """
    if root.values.get("model_type") != "qwen3_tts":
        raise ModelFileError(f"{root.where}: not a Qwen3-TTS checkpoint "
                             f"(model_type {_short(root.values.get('model_type'))}, expected 'qwen3_tts')")
    model_type = root.text("tts_model_type")
    if model_type not in MODEL_TYPES:
        raise ModelFileError(f"{root.where}: tts_model_type {model_type!r} is not one of {', '.join(MODEL_TYPES)}")
    talker = root.section("talker_config")
    predictor, wav = talker.section("code_predictor_config"), codec.section("decoder_config")
    activation = talker.text("hidden_act")
    if activation not in ("silu", "gelu", "relu"):
        raise ModelFileError(f"{talker.where}: hidden_act {activation!r} is not one of silu, gelu, relu")
    dims = Dims(
        talker=_decoder(talker), predictor=_decoder(predictor), wav=_decoder(wav),
        text_vocab=talker.size("text_vocab_size"), text_hidden=talker.size("text_hidden_size"),
        codec_vocab=talker.size("vocab_size"), code_groups=talker.size("num_code_groups"),
        predictor_vocab=predictor.size("vocab_size"), codebook_size=wav.size("codebook_size"),
        codebook_dim=wav.size("codebook_dim"), wav_quantizers=wav.size("num_quantizers"),
        latent=wav.size("latent_dim"), dac_dim=wav.size("decoder_dim"),
        upsample_rates=wav.sizes("upsample_rates"), upsample_ratios=wav.sizes("upsampling_ratios"),
        speaker=_speaker(root.section("speaker_encoder_config")) if model_type == "base" else None,
        encoder=_encoder(codec) if model_type == "base" and codec.values.get("encoder_config") else None)
    if dims.code_groups < 2 or dims.wav_quantizers < 2:
        raise ModelFileError(f"{talker.where}: at least 2 codebooks are needed")
    if talker.size("codec_eos_token_id") >= dims.codec_vocab:
        raise ModelFileError(f"{talker.where}: codec_eos_token_id lies outside the {dims.codec_vocab} codec rows")
    return ModelConfig(dims, root, codec, model_type, root.text("tts_model_size"), activation, _sampling(generation))


def _decoder(c: Section) -> Decoder:
    return Decoder(c.size("hidden_size"), c.size("intermediate_size"), c.size("num_hidden_layers"),
                   c.size("num_attention_heads"), c.size("num_key_value_heads"), c.size("head_dim"))


def _speaker(c: Section) -> SpeakerDims:
    c = Section(_SPEAKER_DEFAULTS | {k: v for k, v in c.values.items() if v is not None}, c.where)
    channels = c.sizes("enc_channels", 5)
    scale = c.size("enc_res2net_scale")
    if len(set(channels[:-1])) != 1 or channels[-1] != sum(channels[1:-1]) or channels[0] % scale:
        raise ModelFileError(f"{c.where}: enc_channels {list(channels)} do not form an ECAPA-TDNN of scale {scale}")
    return SpeakerDims(c.size("enc_dim"), c.size("mel_dim"), channels, c.sizes("enc_kernel_sizes", 5),
                       c.sizes("enc_dilations", 5), c.size("enc_attention_channels"), c.size("enc_se_channels"), scale)


def _encoder(codec: Section) -> EncoderDims:
    c = codec.section("encoder_config")
    return EncoderDims(
        filters=c.size("num_filters"), hidden=c.size("hidden_size"), intermediate=c.size("intermediate_size"),
        layers=c.size("num_hidden_layers"), heads=c.size("num_attention_heads"), head_dim=c.size("head_dim"),
        codebook_dim=c.size("codebook_dim"), codebook_size=c.size("codebook_size"),
        kept=codec.size("encoder_valid_num_quantizers"), strides=c.sizes("upsampling_ratios")[::-1],
        compress=c.size("compress"), kernel=c.size("kernel_size"), last_kernel=c.size("last_kernel_size"),
        residual_kernel=c.size("residual_kernel_size"))


def _sampling(generation: Section | None) -> dict[str, float]:
    if generation is None:
        return {}
    names = (("top_k", "top_k"), ("top_p", "top_p"), ("temp", "temperature"), ("penalty_repeat", "repetition_penalty"),
             ("sub_temp", "subtalker_temperature"), ("sub_top_k", "subtalker_top_k"), ("sub_top_p", "subtalker_top_p"))
    found = {key: generation.number(name) for key, name in names if generation.values.get(name) is not None}
    return {key: int(value) if key.endswith("top_k") else value for key, value in found.items()}


# ---------------------------------------------------------------------------------------------------- metadata

def u32(key: str, value: int) -> KeyValue:
    return KeyValue(key, value, V.UINT32)


def f32(key: str, value: float) -> KeyValue:
    return KeyValue(key, value, V.FLOAT32)


def string(key: str, value: str) -> KeyValue:
    return KeyValue(key, value, V.STRING)


def flag(key: str, value: bool) -> KeyValue:
    return KeyValue(key, value, V.BOOL)


def array(key: str, values, items: V) -> KeyValue:
    return KeyValue(key, list(values), V.ARRAY, items)


def _general(config: ModelConfig, kind: str, name: str, parameters: int) -> list[KeyValue]:
    entries = [string("general.type", kind)]
    for key in ("top_k", "top_p", "temp", "penalty_repeat"):
        if key in config.sampling:
            value = config.sampling[key]
            entries.append(KeyValue(f"general.sampling.{key}", value, V.INT32 if key == "top_k" else V.FLOAT32))
    return [*entries, string("general.name", name),
            string("general.size_label", gguf.size_label(parameters, parameters, 0, 0))]


def _ours(config: ModelConfig) -> list[KeyValue]:
    return [string("tts_cli.model_type", config.model_type), string("tts_cli.model_size", config.model_size)]


def talker_metadata(config: ModelConfig, vocabulary, name: str, type: str, parameters: int) -> list[KeyValue]:
    """llama.cpp's keys of a `qwen3tts` file, then ours. `vocabulary` is a `vocab.Vocabulary`."""
    c, d = config.talker, config.dims
    sections = list(c.section("rope_scaling").sizes("mrope_section"))[:4]
    total = d.text_vocab + d.codec_vocab
    eos = d.text_vocab + config.eos_row
    arch = "qwen3tts"
    entries = [
        *_general(config, "model", name, parameters),
        u32(f"{arch}.block_count", d.talker.layers),
        u32(f"{arch}.context_length", c.size("max_position_embeddings")),
        u32(f"{arch}.embedding_length", d.talker.hidden),
        u32(f"{arch}.feed_forward_length", d.talker.intermediate),
        u32(f"{arch}.attention.head_count", d.talker.heads),
        u32(f"{arch}.attention.head_count_kv", d.talker.kv_heads),
        array(f"{arch}.rope.dimension_sections", sections + [0] * (4 - len(sections)), V.INT32),
        f32(f"{arch}.rope.freq_base", c.number("rope_theta")),
        f32(f"{arch}.attention.layer_norm_rms_epsilon", c.number("rms_norm_eps")),
        u32(f"{arch}.attention.key_length", d.talker.head_dim),
        u32(f"{arch}.attention.value_length", d.talker.head_dim),
        u32("general.file_type", FILE_TYPES[type]),
        # The rows that are no codes; in the published models the last 1024.
        array("tokenizer.ggml.suppress_tokens",
              (i for i in range(d.text_vocab + d.codebook_size, total) if i != eos), V.INT32),
        u32("tokenizer.ggml.eos_token_id", eos),
        flag("tokenizer.ggml.add_eos_token", False),
        u32("general.quantization_version", gguf.GGML_QUANT_VERSION),
        string("tokenizer.ggml.model", "gpt2"),
        string("tokenizer.ggml.pre", "qwen2"),
        array("tokenizer.ggml.tokens", vocabulary.tokens, V.STRING),
        array("tokenizer.ggml.token_type", vocabulary.types, V.INT32),
        array("tokenizer.ggml.merges", vocabulary.merges, V.STRING),
        flag("tokenizer.ggml.add_bos_token", False),
        *_ours(config)]
    dialects = [f"{speaker}={dialect}" for speaker, dialect in (c.values.get("spk_is_dialect") or {}).items()
                if isinstance(dialect, str)]
    if dialects:
        entries.append(array("tts_cli.speaker_dialects", dialects, V.STRING))
    if config.single_voice:
        entries.append(flag("tts_cli.single_voice", True))
    if config.text_mode:
        entries.append(string("tts_cli.text_mode", config.text_mode))
    if config.max_chars:
        entries.append(u32("tts_cli.max_chars", config.max_chars))
    if config.plain_english:
        entries.append(flag("tts_cli.plain_english", True))
    for key in ("sub_temp", "sub_top_k", "sub_top_p"):
        if key in config.sampling:
            value = config.sampling[key]
            entries.append(KeyValue(f"tts_cli.sampling.{key}", value, V.INT32 if key == "sub_top_k" else V.FLOAT32))
    return entries


def mmproj_metadata(config: ModelConfig, name: str, type: str, parameters: int) -> list[KeyValue]:
    """llama.cpp's keys of a `clip` file, then ours. Models without a speaker encoder have no `clip.audio.*`."""
    d, predictor, wav = config.dims, config.talker.section("code_predictor_config"), config.codec
    wav = wav.section("decoder_config")
    speaker, gen, ours = "clip.audio", "clip.gen.audio", "tts_cli"
    entries = [*_general(config, "mmproj", name, parameters), u32("general.file_type", FILE_TYPES[type]),
               flag("clip.has_audio_encoder", d.speaker is not None)]
    if d.speaker:
        entries += [
            string(f"{speaker}.projector_type", "qwen3tts_spkenc"),
            u32(f"{speaker}.projection_dim", d.talker.hidden),
            u32(f"{speaker}.num_mel_bins", d.speaker.mels),
            u32(f"{speaker}.block_count", len(d.speaker.channels) - 2),
            # An ECAPA-TDNN has none of these; llama.cpp's loader asks every audio encoder for them.
            u32(f"{speaker}.embedding_length", 1536),
            u32(f"{speaker}.attention.head_count", 1),
            u32(f"{speaker}.feed_forward_length", 1536),
            f32(f"{speaker}.attention.layer_norm_epsilon", 1e-5)]
    entries += [
        flag("clip.has_gen_audio_encoder", True),
        string(f"{gen}.projector_type", "qwen3tts_gen"),
        u32(f"{gen}.projection_dim", d.talker.hidden),
        u32(f"{gen}.embedding_length", d.predictor.hidden),
        u32(f"{gen}.feed_forward_length", d.predictor.intermediate),
        u32(f"{gen}.block_count", d.predictor.layers),
        u32(f"{gen}.attention.head_count", d.predictor.heads),
        u32(f"{gen}.attention.head_count_kv", d.predictor.kv_heads),
        f32(f"{gen}.attention.layer_norm_epsilon", predictor.number("rms_norm_eps")),
        u32("general.quantization_version", gguf.GGML_QUANT_VERSION),
        *_ours(config),
        f32(f"{ours}.code_predictor.rope_theta", predictor.number("rope_theta")),
        u32(f"{ours}.code2wav.block_count", d.wav.layers),
        u32(f"{ours}.code2wav.head_count", d.wav.heads),
        u32(f"{ours}.code2wav.head_count_kv", d.wav.kv_heads),
        u32(f"{ours}.code2wav.window", wav.size("sliding_window")),
        f32(f"{ours}.code2wav.rms_epsilon", wav.number("rms_norm_eps")),
        f32(f"{ours}.code2wav.rope_theta", wav.number("rope_theta")),
        array(f"{ours}.code2wav.upsample_rates", d.upsample_rates, V.INT32),
        array(f"{ours}.code2wav.upsample_ratios", d.upsample_ratios, V.INT32),
        array(f"{ours}.code2wav.dilations", DAC_DILATIONS, V.INT32)]
    if d.speaker:
        entries += [u32(f"{ours}.speaker_encoder.res2net_scale", d.speaker.res2net_scale),
                    array(f"{ours}.speaker_encoder.dilations", d.speaker.dilations[1:-1], V.INT32)]
    if d.encoder:
        encoder = config.codec.section("encoder_config")
        entries += [u32(f"{ours}.codec_encoder.block_count", d.encoder.layers),
                    u32(f"{ours}.codec_encoder.head_count", d.encoder.heads),
                    array(f"{ours}.codec_encoder.strides", d.encoder.strides, V.INT32),
                    f32(f"{ours}.codec_encoder.norm_epsilon", encoder.number("norm_eps")),
                    f32(f"{ours}.codec_encoder.rope_theta", encoder.number("rope_theta"))]
    return entries
