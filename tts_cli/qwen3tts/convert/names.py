"""Which checkpoint tensor becomes which GGUF tensor: names, shapes, what is done on the way, and how it is stored.

The layout is llama.cpp's (architecture `qwen3tts` with its `clip` companion), in the order its converter writes.
Tensors of the speech tokenizer carry the prefix `speech_tokenizer/` here.
"""

from collections.abc import Iterator
from dataclasses import dataclass

CODEC = "speech_tokenizer/"
OURS = "tts_cli."  # names that llama.cpp's loader never asks for
DAC_RESIDUALS = 3  # residual units per vocoder block; the reference implementation fixes their dilations
DAC_DILATIONS = (1, 3, 9)

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Entry:
    """One tensor of the GGUF file.

    shape      row-major, as torch sees it (GGUF prints it reversed)
    sources    the checkpoint tensors it is made of, with the shapes they must have
    op         copy | stack | fold | codebook | exp | inverse_exp, see `convert.Sources.rows`
    storage    typed: the type asked for; embedding: the same, but never ternary; or a fixed type: "F32", "F16".
               "F16_CONV" is F16 except in an F32 file.
    """

    name: str
    shape: Shape
    sources: tuple[tuple[str, Shape], ...]
    op: str = "copy"
    storage: str = "typed"


@dataclass(frozen=True)
class Decoder:
    """Dimensions of a Qwen3 decoder stack."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class Dims:
    """Everything the layout depends on; read from the two config.json by `config`."""

    talker: Decoder
    predictor: Decoder
    wav: Decoder
    text_vocab: int
    text_hidden: int
    codec_vocab: int
    code_groups: int
    predictor_vocab: int
    codebook_size: int
    codebook_dim: int
    wav_quantizers: int
    latent: int
    dac_dim: int
    upsample_rates: tuple[int, ...]
    upsample_ratios: tuple[int, ...]
    speaker: "SpeakerDims | None"
    encoder: "EncoderDims | None"


@dataclass(frozen=True)
class SpeakerDims:
    """The ECAPA-TDNN speaker encoder of Base models."""

    embedding: int
    mels: int
    channels: tuple[int, ...]
    kernels: tuple[int, ...]
    dilations: tuple[int, ...]
    attention: int
    squeeze: int
    res2net_scale: int


@dataclass(frozen=True)
class EncoderDims:
    """The speech tokenizer's encoder, which in-context cloning needs (Base models)."""

    filters: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    head_dim: int
    codebook_dim: int
    codebook_size: int
    kept: int               # codebooks of a frame, the semantic one included
    strides: tuple[int, ...]
    compress: int
    kernel: int
    last_kernel: int
    residual_kernel: int


# checkpoint name, name in the talker, name in the predictor
_LAYER = (
    ("input_layernorm", "attn_norm", "ln1"),
    ("mlp.down_proj", "ffn_down", "ffn_down"),
    ("mlp.gate_proj", "ffn_gate", "ffn_gate"),
    ("mlp.up_proj", "ffn_up", "ffn_up"),
    ("post_attention_layernorm", "ffn_norm", "ln2"),
    ("self_attn.k_norm", "attn_k_norm", "attn_k_norm"),
    ("self_attn.k_proj", "attn_k", "attn_k"),
    ("self_attn.o_proj", "attn_output", "attn_out"),
    ("self_attn.q_norm", "attn_q_norm", "attn_q_norm"),
    ("self_attn.q_proj", "attn_q", "attn_q"),
    ("self_attn.v_proj", "attn_v", "attn_v"),
)
# The vocoder's transformer: no q/k norms, but a scale vector after each half.
_WAV_LAYER = (
    ("input_layernorm.weight", "ln1"),
    ("self_attn.q_proj.weight", "attn_q"),
    ("self_attn.k_proj.weight", "attn_k"),
    ("self_attn.v_proj.weight", "attn_v"),
    ("self_attn.o_proj.weight", "attn_out"),
    ("self_attn_layer_scale.scale", "ls1"),
    ("post_attention_layernorm.weight", "ln2"),
    ("mlp.gate_proj.weight", "ffn_gate"),
    ("mlp.up_proj.weight", "ffn_up"),
    ("mlp.down_proj.weight", "ffn_down"),
    ("mlp_layer_scale.scale", "ls2"),
)


def _layer_shapes(d: Decoder) -> dict[str, Shape]:
    query, key = d.heads * d.head_dim, d.kv_heads * d.head_dim
    return {"q_proj": (query, d.hidden), "k_proj": (key, d.hidden), "v_proj": (key, d.hidden),
            "o_proj": (d.hidden, query), "gate_proj": (d.intermediate, d.hidden),
            "up_proj": (d.intermediate, d.hidden), "down_proj": (d.hidden, d.intermediate),
            "q_norm": (d.head_dim,), "k_norm": (d.head_dim,)}


def _copy(name: str, source: str, shape: Shape, storage: str = "typed", source_shape: Shape | None = None) -> Entry:
    return Entry(name, shape, ((source, source_shape or shape),), "copy", storage)


def _weight_and_bias(name: str, source: str, shape: Shape, outputs: int, storage: str = "typed") -> Iterator[Entry]:
    yield _copy(f"{name}.weight", f"{source}.weight", shape, storage)
    yield _copy(f"{name}.bias", f"{source}.bias", (outputs,))


def talker_entries(d: Dims) -> list[Entry]:
    """Tensors of the talker file."""
    hidden, text = d.talker.hidden, d.text_hidden
    shapes = _layer_shapes(d.talker)
    codec_rows = ("talker.model.codec_embedding.weight", (d.codec_vocab, hidden))
    projection = "talker.text_projection.linear_fc"
    folded = (("talker.model.text_embedding.weight", (d.text_vocab, text)),
              (f"{projection}1.weight", (text, text)), (f"{projection}1.bias", (text,)),
              (f"{projection}2.weight", (hidden, text)), (f"{projection}2.bias", (hidden,)), codec_rows)
    entries = [_copy("output.weight", "talker.codec_head.weight", (d.codec_vocab, hidden), "embedding")]
    for i in range(d.talker.layers):
        for source, name, _ in _LAYER:
            entries.append(_copy(f"blk.{i}.{name}.weight", f"talker.model.layers.{i}.{source}.weight",
                                 shapes.get(source.split(".")[-1], (hidden,))))
    entries.append(_copy("output_norm.weight", "talker.model.norm.weight", (hidden,)))
    entries.append(Entry("token_embd.weight", (d.text_vocab + d.codec_vocab, hidden), folded, "fold", "embedding"))
    return entries


def mmproj_entries(d: Dims) -> list[Entry]:
    """Tensors of the mmproj file: vocoder, speaker encoder (Base models), code predictor."""
    speaker = _speaker(d.speaker) if d.speaker else ()
    encoder = _codec_encoder(d.encoder) if d.encoder else ()
    return [*_quantizers(d), *_wav_transformer(d), *_vocoder(d), *speaker, *_predictor(d), *encoder]


def _predictor(d: Dims) -> Iterator[Entry]:
    hidden, talker, acoustic = d.predictor.hidden, d.talker.hidden, d.code_groups - 1
    source, out = "talker.code_predictor.", "a.gen.code."
    for name, part, width in (("head", "lm_head", hidden), ("embd", "model.codec_embedding", talker)):
        books = tuple((f"{source}{part}.{g}.weight", (d.predictor_vocab, width)) for g in range(acoustic))
        yield Entry(f"{out}{name}.weight", (acoustic, d.predictor_vocab, width), books, "stack")
    shapes = _layer_shapes(d.predictor)
    for i in range(d.predictor.layers):
        for part, _, name in _LAYER:
            # The down projection's input exceeds the F16 range, and llama.cpp casts it to the weight's type.
            yield _copy(f"{out}blk.{i}.{name}.weight", f"{source}model.layers.{i}.{part}.weight",
                        shapes.get(part.split(".")[-1], (hidden,)), "F32" if name == "ffn_down" else "typed")
    yield _copy(f"{out}output_norm.weight", f"{source}model.norm.weight", (hidden,))
    if hidden != talker:
        yield _copy(f"{out}proj_in.bias", f"{source}small_to_mtp_projection.bias", (hidden,))
        yield _copy(f"{out}proj_in.weight", f"{source}small_to_mtp_projection.weight", (hidden, talker))
    yield _copy(f"{out}out_embd.weight", "talker.model.codec_embedding.weight", (d.codec_vocab, talker))


def _quantizers(d: Dims) -> Iterator[Entry]:
    half = d.codebook_dim // 2
    for name, books in (("first", 1), ("rest", d.wav_quantizers - 1)):
        out, source = f"a.gen.wav.quant.{name}.", f"{CODEC}decoder.quantizer.rvq_{name}."
        yield _copy(f"{out}in_proj.weight", f"{source}input_proj.weight", (half, d.codebook_dim),
                    source_shape=(half, d.codebook_dim, 1))
        yield _copy(f"{out}out_proj.weight", f"{source}output_proj.weight", (d.codebook_dim, half),
                    source_shape=(d.codebook_dim, half, 1))
        parts = []
        for i in range(books):
            book = f"{source}vq.layers.{i}._codebook."
            parts += [(f"{book}embedding_sum", (d.codebook_size, half)), (f"{book}cluster_usage", (d.codebook_size,))]
        shape = (d.codebook_size, half) if books == 1 else (books, d.codebook_size, half)
        yield Entry(f"{out}codebook.weight", shape, tuple(parts), "codebook")


def _wav_transformer(d: Dims) -> Iterator[Entry]:
    hidden, latent = d.wav.hidden, d.latent
    out, source = "a.gen.wav.tfm.", f"{CODEC}decoder.pre_transformer."
    yield from _weight_and_bias("a.gen.wav.pre_conv", f"{CODEC}decoder.pre_conv.conv",
                                (latent, d.codebook_dim, 3), latent, "F16")
    yield from _weight_and_bias(f"{out}in_proj", f"{source}input_proj", (hidden, latent), hidden)
    yield from _weight_and_bias(f"{out}out_proj", f"{source}output_proj", (latent, hidden), latent)
    yield _copy(f"{out}output_norm.weight", f"{source}norm.weight", (hidden,))
    shapes = _layer_shapes(d.wav)
    for i in range(d.wav.layers):
        for part, name in _WAV_LAYER:
            yield _copy(f"{out}blk.{i}.{name}.weight", f"{source}layers.{i}.{part}",
                        shapes.get(part.split(".")[-2], (hidden,)))


def _vocoder(d: Dims) -> Iterator[Entry]:
    c, dac = d.latent, "a.gen.wav.dac."
    for i, ratio in enumerate(d.upsample_ratios):
        out, source = f"a.gen.wav.up.blk.{i}.", f"{CODEC}decoder.upsample.{i}."
        yield from _weight_and_bias(f"{out}conv", f"{source}0.conv", (c, c, ratio), c, "F32")
        yield from _weight_and_bias(f"{out}dwconv", f"{source}1.dwconv.conv", (c, 1, 7), c, "F16")
        yield from _weight_and_bias(f"{out}norm", f"{source}1.norm", (c,), c)
        yield from _weight_and_bias(f"{out}pw1", f"{source}1.pwconv1", (4 * c, c), 4 * c)
        yield from _weight_and_bias(f"{out}pw2", f"{source}1.pwconv2", (c, 4 * c), c)
        yield _copy(f"{out}gamma", f"{source}1.gamma", (c,))
    decoder = f"{CODEC}decoder.decoder."
    width = d.dac_dim
    yield from _weight_and_bias(f"{dac}entry", f"{decoder}0.conv", (width, c, 7), width, "F16")
    for i, rate in enumerate(d.upsample_rates):
        out, source = f"{dac}blk.{i}.", f"{decoder}{i + 1}.block."
        yield from _snake(f"{out}snake", f"{source}0", width)
        before, width = width, d.dac_dim // 2 ** (i + 1)
        yield from _weight_and_bias(f"{out}conv", f"{source}1.conv", (before, width, 2 * rate), width, "F32")
        for unit in range(DAC_RESIDUALS):
            for part, kernel in ((1, 7), (2, 1)):
                name, inner = f"{out}res.{unit}.", f"{source}{unit + 2}."
                yield from _snake(f"{name}act{part}", f"{inner}act{part}", width)
                yield from _weight_and_bias(f"{name}conv{part}", f"{inner}conv{part}.conv", (width, width, kernel),
                                            width, "F16")
    last = len(d.upsample_rates) + 1
    yield from _snake(f"{dac}post_snake", f"{decoder}{last}", width)
    yield from _weight_and_bias(f"{dac}post_conv", f"{decoder}{last + 1}.conv", (1, width, 7), 1, "F16")


def _snake(name: str, source: str, channels: int) -> Iterator[Entry]:
    """Snake's per-channel factors, stored ready for x + beta * sin(alpha * x)^2."""
    for part, op in (("alpha", "exp"), ("beta", "inverse_exp")):
        yield Entry(f"{name}.{part}", (channels,), ((f"{source}.{part}", (channels,)),), op)


def _speaker(s: SpeakerDims) -> Iterator[Entry]:
    width, group, last = s.channels[0], s.channels[0] // s.res2net_scale, s.channels[-1]

    def conv(name: str, source: str, outputs: int, inputs: int, kernel: int = 1) -> Iterator[Entry]:
        yield _copy(f"{name}.bias", f"speaker_encoder.{source}.bias", (outputs,))
        yield _copy(f"{name}.weight", f"speaker_encoder.{source}.weight", (outputs, inputs, kernel), "F16_CONV")

    yield from conv("a.asp_attn", "asp.conv", last, s.attention)
    yield from conv("a.asp_tdnn", "asp.tdnn.conv", s.attention, 3 * last)
    yield from conv("a.conv1d.0", "blocks.0.conv", width, s.mels, s.kernels[0])
    for i in range(1, len(s.channels) - 1):
        out, source = f"a.blk.{i}.", f"blocks.{i}."
        for j in range(s.res2net_scale - 1):
            yield from conv(f"{out}res2.{j}", f"{source}res2net_block.blocks.{j}.conv", group, group, s.kernels[i])
        yield from conv(f"{out}se_conv1", f"{source}se_block.conv1", s.squeeze, width)
        yield from conv(f"{out}se_conv2", f"{source}se_block.conv2", width, s.squeeze)
        yield from conv(f"{out}conv_pw1", f"{source}tdnn1.conv", width, width)
        yield from conv(f"{out}conv_pw2", f"{source}tdnn2.conv", width, width)
    yield from conv("mm.a.fc", "fc", s.embedding, 2 * last)
    yield from conv("a.conv_out", "mfa.conv", last, last)


def _codec_encoder(e: EncoderDims) -> Iterator[Entry]:
    """Ours alone: llama.cpp converts no encoder, and its loader passes over names it does not ask for."""
    out, source = f"{OURS}enc.", f"{CODEC}encoder."
    layers, width = f"{source}encoder.layers.", e.filters

    def conv(name: str, source: str, outputs: int, inputs: int, kernel: int) -> Iterator[Entry]:
        return _weight_and_bias(f"{out}{name}", f"{source}.conv", (outputs, inputs, kernel), outputs, "F16_CONV")

    yield from conv("entry", f"{layers}0", width, 1, e.kernel)
    for i, stride in enumerate(e.strides):
        first, name = 3 * i + 1, f"stage.{i}."
        yield from conv(f"{name}squeeze", f"{layers}{first}.block.1", width // e.compress, width, e.residual_kernel)
        yield from conv(f"{name}expand", f"{layers}{first}.block.3", width, width // e.compress, 1)
        yield from conv(f"{name}down", f"{layers}{first + 2}", 2 * width, width, 2 * stride)
        width *= 2
    yield from conv("exit", f"{layers}{3 * len(e.strides) + 2}", e.hidden, width, e.last_kernel)
    inner, hidden, up = e.heads * e.head_dim, e.hidden, e.intermediate
    for i in range(e.layers):
        name, block = f"{out}blk.{i}.", f"{source}encoder_transformer.layers.{i}."
        for norm, part in (("ln1", "input_layernorm"), ("ln2", "post_attention_layernorm")):
            yield from _weight_and_bias(f"{name}{norm}", f"{block}{part}", (hidden,), hidden)
        for tensor, part, shape in (
                ("attn_q", "self_attn.q_proj.weight", (inner, hidden)),
                ("attn_k", "self_attn.k_proj.weight", (inner, hidden)),
                ("attn_v", "self_attn.v_proj.weight", (inner, hidden)),
                ("attn_out", "self_attn.o_proj.weight", (hidden, inner)),
                ("ls1", "self_attn_layer_scale.scale", (hidden,)),
                ("ffn_up", "mlp.fc1.weight", (up, hidden)), ("ffn_down", "mlp.fc2.weight", (hidden, up)),
                ("ls2", "mlp_layer_scale.scale", (hidden,))):
            yield _copy(f"{name}{tensor}.weight", f"{block}{part}", shape, "F16_CONV" if len(shape) > 1 else "F32")
    yield _copy(f"{out}downsample.weight", f"{source}downsample.conv.weight", (hidden, hidden, 4), "F16_CONV")
    for name, books in (("semantic", 1), ("acoustic", e.kept - 1)):
        quantizer = f"{source}quantizer.{name}_residual_vector_quantizer."
        yield _copy(f"{out}{name}.proj.weight", f"{quantizer}input_proj.weight", (e.codebook_dim, hidden), "F16_CONV",
                    (e.codebook_dim, hidden, 1))
        parts = []
        for i in range(books):
            book = f"{quantizer}layers.{i}.codebook."
            parts += [(f"{book}embed_sum", (e.codebook_size, e.codebook_dim)),
                      (f"{book}cluster_usage", (e.codebook_size,))]
        shape = (e.codebook_size, e.codebook_dim)
        # Full precision: the nearest of close code vectors decides the code.
        yield Entry(f"{out}{name}.codebook.weight", shape if books == 1 else (books, *shape), tuple(parts), "codebook",
                    "F32")
