"""The sizes of a model, read from the metadata and tensor shapes of its two GGUF files.

What llama.cpp's files leave out is read from `tts_cli.*` keys when the converter of this project wrote them, and is
llama.cpp's own constant otherwise.
"""

from dataclasses import dataclass

from tts_cli.audio.mel import MELS
from tts_cli.engine import SpeechRequest
from tts_cli.errors import ModelFileError, UsageError
from tts_cli.gguf.file import REQUIRED, GGUFFile
from tts_cli.qwen3tts.code2wav import Code2WavConfig
from tts_cli.qwen3tts.codec_encoder import CodecEncoderConfig
from tts_cli.qwen3tts.layers import TransformerConfig
from tts_cli.qwen3tts.sampling import SamplingOptions
from tts_cli.qwen3tts.speaker_encoder import SpeakerEncoderConfig

TALKER_ARCHITECTURE = "qwen3tts"
MMPROJ_ARCHITECTURE = "clip"
_MAX_LAYERS = 512  # a damaged count must not build a million modules


@dataclass(frozen=True)
class TalkerConfig:
    transformer: TransformerConfig
    context: int
    vocab: int              # text rows + codec rows of token_embd
    codec_vocab: int

    @property
    def text_vocab(self) -> int:
        """Where the codec rows begin."""
        return self.vocab - self.codec_vocab


@dataclass(frozen=True)
class CodePredictorConfig:
    transformer: TransformerConfig
    talker_hidden: int
    codec_vocab: int
    books: int              # all of a frame, codebook 0 included
    codes: int
    projection: bool


@dataclass(frozen=True)
class SamplingDefaults:
    talker: SamplingOptions
    predictor: SamplingOptions
    repeat_penalty: float


def check_architecture(file: GGUFFile, expected: str) -> None:
    """Raises `ModelFileError`; a talker in the mmproj's place, or the other way round, is recognised."""
    found = file.architecture
    if found == expected:
        return
    roles = {TALKER_ARCHITECTURE: "the talker (-m)", MMPROJ_ARCHITECTURE: "an mmproj (-mm)"}
    if found in roles:
        raise ModelFileError(f"{file.path}: this is {roles[found]}, and {roles[expected]} is needed here; "
                             "were the two swapped?")
    raise ModelFileError(f"{file.path}: architecture {found!r} is not Qwen3-TTS (expected {expected!r})")


def talker_config(file: GGUFFile) -> TalkerConfig:
    """Raises `ModelFileError` naming the key or tensor that is missing or does not fit."""
    check_architecture(file, TALKER_ARCHITECTURE)
    hidden = _size(file, "qwen3tts.embedding_length")
    head_dim = _size(file, "qwen3tts.attention.key_length")
    if file.get("qwen3tts.attention.value_length", int, head_dim) != head_dim:
        raise ModelFileError(f"{file.path}: key and value heads of different width are not supported")
    transformer = _transformer(
        file, "qwen3tts", hidden=hidden, head_dim=head_dim, eps_key="attention.layer_norm_rms_epsilon",
        rope_theta=_positive(file, "qwen3tts.rope.freq_base"))
    vocab = file.tensor("token_embd.weight", (None, hidden)).shape[0]
    codec_vocab = file.tensor("output.weight", (None, hidden)).shape[0]
    if vocab <= codec_vocab:
        raise ModelFileError(f"{file.path}: token_embd has {vocab} rows, too few for {codec_vocab} codec rows and text")
    return TalkerConfig(transformer, _size(file, "qwen3tts.context_length", most=2**31), vocab, codec_vocab)


def code_predictor_config(file: GGUFFile) -> CodePredictorConfig:
    """Raises `ModelFileError`."""
    prefix = "clip.gen.audio"
    hidden = _size(file, f"{prefix}.embedding_length")
    heads = _size(file, f"{prefix}.attention.head_count")
    head_dim = _divide(file, "a.gen.code.blk.0.attn_q.weight", file.tensor("a.gen.code.blk.0.attn_q.weight",
                                                                         (None, hidden)).shape[0], heads)
    transformer = _transformer(
        file, prefix, hidden=hidden, head_dim=head_dim, eps_key="attention.layer_norm_epsilon",
        rope_theta=_positive(file, "tts_cli.code_predictor.rope_theta", 1e6))
    rest, codes, width = file.tensor("a.gen.code.embd.weight", (None, None, None)).shape
    codec_vocab = file.tensor("a.gen.code.out_embd.weight", (None, width)).shape[0]
    projection = "a.gen.code.proj_in.weight" in file.tensors
    if not projection and width != hidden:
        raise ModelFileError(f"{file.path}: talker width {width} and code predictor width {hidden} differ, "
                             "but the file has no a.gen.code.proj_in.weight")
    return CodePredictorConfig(transformer, width, codec_vocab, rest + 1, codes, projection)


def code2wav_config(file: GGUFFile) -> Code2WavConfig:
    """Raises `ModelFileError`."""
    def shape(name: str, dims: int) -> tuple[int, ...]:
        return file.tensor(f"a.gen.wav.{name}", (None,) * dims).shape

    default = Code2WavConfig
    rest, codes, codebook_width = shape("quant.rest.codebook.weight", 3)
    heads = _size(file, "tts_cli.code2wav.head_count", default.heads)
    if _size(file, "tts_cli.code2wav.head_count_kv", heads) != heads:
        raise ModelFileError(f"{file.path}: grouped key heads in code2wav are not supported")
    return Code2WavConfig(
        books=rest + 1, codes=codes, codebook_width=codebook_width,
        width=shape("quant.first.out_proj.weight", 2)[0],
        latent=shape("pre_conv.weight", 3)[0],
        hidden=shape("tfm.in_proj.weight", 2)[0],
        intermediate=shape("tfm.blk.0.ffn_up.weight", 2)[0],
        decoder=shape("dac.entry.weight", 3)[0],
        layers=_size(file, "tts_cli.code2wav.block_count", default.layers, _MAX_LAYERS),
        heads=heads,
        head_dim=_divide(file, "a.gen.wav.tfm.blk.0.attn_q.weight", shape("tfm.blk.0.attn_q.weight", 2)[0], heads),
        window=_size(file, "tts_cli.code2wav.window", default.window, least=2),
        rms_eps=_positive(file, "tts_cli.code2wav.rms_epsilon", default.rms_eps),
        rope_theta=_positive(file, "tts_cli.code2wav.rope_theta", default.rope_theta),
        upsample_ratios=_sizes(file, "tts_cli.code2wav.upsample_ratios", default.upsample_ratios),
        upsample_rates=_sizes(file, "tts_cli.code2wav.upsample_rates", default.upsample_rates),
        dilations=_sizes(file, "tts_cli.code2wav.dilations", default.dilations))


def speaker_encoder_config(file: GGUFFile) -> SpeakerEncoderConfig | None:
    """None for checkpoints without one (CustomVoice, VoiceDesign). Raises `ModelFileError`."""
    if "a.conv1d.0.weight" not in file.tensors:
        return None

    def shape(name: str) -> tuple[int, ...]:
        return file.tensor(name, (None, None, None)).shape

    channels, mels, _ = file.tensor("a.conv1d.0.weight", (None, MELS, None)).shape
    scale = _size(file, "tts_cli.speaker_encoder.res2net_scale", SpeakerEncoderConfig.res2net_scale)
    _divide(file, "a.conv1d.0.weight", channels, scale)
    return SpeakerEncoderConfig(
        mels=mels, channels=channels, pooled_channels=shape("a.conv_out.weight")[0],
        attention=shape("a.asp_tdnn.weight")[0], squeeze=shape("a.blk.1.se_conv1.weight")[0],
        output=shape("mm.a.fc.weight")[0], res2net_scale=scale,
        dilations=_sizes(file, "tts_cli.speaker_encoder.dilations", SpeakerEncoderConfig.dilations))


def codec_encoder_config(file: GGUFFile) -> CodecEncoderConfig | None:
    """None for files without one, such as all of llama.cpp's. Raises `ModelFileError`."""
    p = "tts_cli.enc."
    if f"{p}entry.weight" not in file.tensors:
        return None

    def shape(name: str, dims: int) -> tuple[int, ...]:
        return file.tensor(f"{p}{name}.weight", (None,) * dims).shape

    default = CodecEncoderConfig
    books, codes, width = shape("acoustic.codebook", 3)
    heads = _size(file, "tts_cli.codec_encoder.head_count")
    filters, _, kernel = shape("entry", 3)
    squeezed, _, residual_kernel = shape("stage.0.squeeze", 3)
    return CodecEncoderConfig(
        filters=filters, hidden=shape("exit", 3)[0], intermediate=shape("blk.0.ffn_up", 2)[0],
        layers=_size(file, "tts_cli.codec_encoder.block_count", most=_MAX_LAYERS), heads=heads,
        head_dim=_divide(file, f"{p}blk.0.attn_q.weight", shape("blk.0.attn_q", 2)[0], heads),
        codebook_width=width, codes=codes, books=books + 1,
        strides=_sizes(file, "tts_cli.codec_encoder.strides", default.strides),
        compress=_divide(file, f"{p}stage.0.squeeze.weight", filters, squeezed), kernel=kernel,
        last_kernel=shape("exit", 3)[2], residual_kernel=residual_kernel,
        norm_eps=_positive(file, "tts_cli.codec_encoder.norm_epsilon", default.norm_eps),
        rope_theta=_positive(file, "tts_cli.codec_encoder.rope_theta", default.rope_theta))


def sampling_defaults(file: GGUFFile) -> SamplingDefaults:
    """`general.sampling.*` of the talker, or the values of the reference implementation (qwen-tts 0.1.1).

    Raises `ModelFileError` for values that a request may not have either.
    """
    default = SamplingOptions()

    def value(key: str, kind: type, field: str, otherwise):
        found = file.get(key, kind, otherwise)
        try:
            SpeechRequest("", **{field: found})
        except UsageError as error:
            raise ModelFileError(f"{file.path}: {key}{str(error).removeprefix(field)}") from None
        return found

    def options(prefix: str, field: str) -> SamplingOptions:
        return SamplingOptions(value(f"{prefix}temp", float, f"{field}temperature", default.temperature),
                               value(f"{prefix}top_k", int, f"{field}top_k", default.top_k),
                               value(f"{prefix}top_p", float, f"{field}top_p", default.top_p))

    return SamplingDefaults(options("general.sampling.", ""), options("tts_cli.sampling.sub_", "sub_"),
                            value("general.sampling.penalty_repeat", float, "repeat_penalty", 1.05))


def _transformer(file: GGUFFile, prefix: str, *, hidden: int, head_dim: int, eps_key: str,
                 rope_theta: float) -> TransformerConfig:
    heads = _size(file, f"{prefix}.attention.head_count")
    kv_heads = _size(file, f"{prefix}.attention.head_count_kv")
    _divide(file, f"{prefix}.attention.head_count", heads, kv_heads)
    if head_dim % 2:
        raise ModelFileError(f"{file.path}: attention heads of odd width {head_dim} cannot be rotated")
    return TransformerConfig(
        hidden=hidden, intermediate=_size(file, f"{prefix}.feed_forward_length"),
        layers=_size(file, f"{prefix}.block_count", most=_MAX_LAYERS), heads=heads, kv_heads=kv_heads,
        head_dim=head_dim, rope_theta=rope_theta, rms_eps=_positive(file, f"{prefix}.{eps_key}"))


def _size(file: GGUFFile, key: str, default: int = REQUIRED, most: int = 2**17, least: int = 1) -> int:
    """A positive integer key."""
    value = file.get(key, int, default)
    if not least <= value <= most:
        raise ModelFileError(f"{file.path}: {key} = {value} is out of range ({least} to {most})")
    return value


def _positive(file: GGUFFile, key: str, default: float = REQUIRED) -> float:
    value = file.get(key, float, default)
    if value <= 0:
        raise ModelFileError(f"{file.path}: {key} = {value} must be greater than 0")
    return value


def _sizes(file: GGUFFile, key: str, default: tuple[int, ...]) -> tuple[int, ...]:
    values = tuple(file.get(key, list, list(default)))
    if not 0 < len(values) <= 16 or not all(isinstance(v, int) and 0 < v <= 4096 for v in values):
        raise ModelFileError(f"{file.path}: {key} = {values[:20]} must be 1 to 16 positive integers")
    return values


def _divide(file: GGUFFile, what: str, total: int, parts: int) -> int:
    if total % parts:
        raise ModelFileError(f"{file.path}: {what}: {total} cannot be split into {parts} equal parts")
    return total // parts
