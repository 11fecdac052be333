"""A Qwen3-TTS model of a few hundred thousand random weights: its configuration, vocabulary and tensors.

Names and nesting are those of the published checkpoints; only the widths are small. What the architecture fixes
stays as it is: 3072 codec rows, 15 acoustic books of 2048, 8 code2wav layers of 16 heads, 1920 samples per frame.
Every tensor has its own generator, seeded by its name, so a weight never depends on which others were drawn.
"""

import json
import zlib
from pathlib import Path

import numpy as np

DATA = Path(__file__).parent / "data"
TEXT_VOCAB = 2048
CODEC_ROWS = 3072
EOS_ROW = 2150
LANGUAGES = dict(english=2050, german=2053, spanish=2054, chinese=2055, japanese=2058, french=2061, korean=2064,
                 russian=2069, italian=2070, portuguese=2071)
DIALECTS = dict(sichuan_dialect=2062, beijing_dialect=2074)
SPEAKERS = dict(serena=3066, vivian=3065, uncle_fu=3010, ryan=3061, aiden=2861, ono_anna=2873, sohee=2864, eric=2875,
                dylan=2878)
SPEAKER_DIALECTS = dict(eric="sichuan_dialect", dylan="beijing_dialect")
CODEC_IDS = dict(codec_pad_id=2148, codec_bos_id=2149, codec_eos_token_id=EOS_ROW, codec_think_id=2154,
                 codec_nothink_id=2155, codec_think_bos_id=2156, codec_think_eos_id=2157)
# The tokens that follow the byte-pair vocabulary, in the order of the real tokenizer.
CONTROL_TOKENS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>",
    "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>",
    "</think>", "<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>",
    "<tts_text_bos_single>", "<|audio_pad|>"]
PLAIN_ADDED_TOKENS = {"<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"}
NOT_SPECIAL = PLAIN_ADDED_TOKENS | {"<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
                                    "<|repo_name|>", "<|file_sep|>"}


def merges() -> list[str]:
    """1711 merges of the real vocabulary, each "left right" in byte-level symbols."""
    return json.loads((DATA / "tokenizer.json").read_text(encoding="utf-8"))["merges"]


def byte_symbols() -> list[str]:
    """The 256 byte-level symbols in vocabulary order: printable bytes first, the others moved to U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(b) for b in printable] + [chr(0x100 + i) for i in range(256 - len(printable))]


def text_tokens() -> list[str]:
    """Byte symbols, merged tokens and control tokens; ids are positions. The rest up to TEXT_VOCAB are holes."""
    return byte_symbols() + [m.replace(" ", "") for m in merges()] + CONTROL_TOKENS


def main_config(variant: str = "base", equal: bool = False) -> dict:
    """config.json. `equal`: a code predictor as wide as the talker, hence no projection between them."""
    ids = {token: i for i, token in enumerate(text_tokens())}
    shared = dict(attention_bias=False, attention_dropout=0, hidden_act="silu", initializer_range=0.02,
                  rms_norm_eps=1e-6, rope_theta=1000000, sliding_window=None, use_cache=True,
                  use_sliding_window=False, tie_word_embeddings=False, num_code_groups=16)
    predictor = shared | dict(
        model_type="qwen3_tts_talker_code_predictor", hidden_size=64 if equal else 32, intermediate_size=96,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=2048,
        max_position_embeddings=65536, max_length=20, max_window_layers=28, rope_scaling=None,
        layer_types=["full_attention"] * 2)
    talker = shared | CODEC_IDS | dict(
        model_type="qwen3_tts_talker", hidden_size=64, intermediate_size=128, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, vocab_size=CODEC_ROWS,
        max_position_embeddings=32768, position_id_per_seconds=13, text_hidden_size=96, text_vocab_size=TEXT_VOCAB,
        rope_scaling=dict(interleaved=True, mrope_section=[6, 5, 5], rope_type="default", type="default"),
        codec_language_id=LANGUAGES if variant == "base" else LANGUAGES | DIALECTS,
        spk_id=SPEAKERS if variant == "custom_voice" else {},
        spk_is_dialect={s: SPEAKER_DIALECTS.get(s, False) for s in SPEAKERS} if variant == "custom_voice" else {},
        code_predictor_config=predictor)
    config = dict(
        architectures=["Qwen3TTSForConditionalGeneration"], model_type="qwen3_tts", tts_model_type=variant,
        tts_model_size="0b6" if equal else "1b7", tokenizer_type="qwen3_tts_tokenizer_12hz",
        assistant_token_id=ids["assistant"], im_start_token_id=ids["<|im_start|>"],
        im_end_token_id=ids["<|im_end|>"], tts_pad_token_id=ids["<tts_pad>"],
        tts_bos_token_id=ids["<tts_text_bos>"], tts_eos_token_id=ids["<tts_text_eod>"], talker_config=talker,
        transformers_version="4.57.3")
    if variant == "base":
        config["speaker_encoder_config"] = dict(
            enc_dim=64, sample_rate=24000, mel_dim=128, enc_channels=[16, 16, 16, 16, 48],
            enc_kernel_sizes=[5, 3, 3, 3, 1], enc_dilations=[1, 2, 3, 4, 1], enc_attention_channels=8,
            enc_se_channels=8, enc_res2net_scale=8)
    return config


def codec_config() -> dict:
    """speech_tokenizer/config.json."""
    shared = dict(attention_bias=False, attention_dropout=0.0, codebook_size=2048, layer_scale_initial_scale=0.01,
                  max_position_embeddings=8000, rope_theta=10000, num_semantic_quantizers=1, hidden_size=32,
                  head_dim=8, intermediate_size=64)
    decoder = shared | dict(
        hidden_act="silu", rms_norm_eps=1e-5, sliding_window=72, latent_dim=64, codebook_dim=32, decoder_dim=64,
        num_attention_heads=16, num_key_value_heads=16, num_hidden_layers=8, num_quantizers=16,
        semantic_codebook_size=4096, vector_quantization_hidden_dimension=32, upsample_rates=[8, 5, 4, 3],
        upsampling_ratios=[2, 2])
    encoder = shared | dict(
        hidden_act="gelu", norm_eps=1e-5, sliding_window=250, num_attention_heads=4, num_key_value_heads=4,
        num_hidden_layers=2, num_filters=4, codebook_dim=16, vector_quantization_hidden_dimension=16,
        num_quantizers=32, upsampling_ratios=[8, 6, 5, 4], kernel_size=7, last_kernel_size=3, residual_kernel_size=3,
        num_residual_layers=1, dilation_growth_rate=2, compress=2, audio_channels=1, sampling_rate=24000,
        pad_mode="constant", trim_right_ratio=1.0, upsample_groups=32, use_cache=False, use_causal_conv=True,
        use_conv_shortcut=False, use_streaming=False, _frame_rate=12.5, initializer_range=0.02)
    return dict(architectures=["Qwen3TTSTokenizerV2Model"], model_type="qwen3_tts_tokenizer_12hz",
                encoder_valid_num_quantizers=16, input_sample_rate=24000, output_sample_rate=24000,
                decode_upsample_rate=1920, encode_downsample_rate=1920, decoder_config=decoder,
                encoder_config=encoder, transformers_version="4.57.3")


def generation_config() -> dict:
    """generation_config.json, as published."""
    return dict(do_sample=True, temperature=0.9, top_k=50, top_p=1.0, repetition_penalty=1.05,
                subtalker_dosample=True, subtalker_temperature=0.9, subtalker_top_k=50, subtalker_top_p=1.0,
                max_new_tokens=8192)


def half_exact(x: np.ndarray) -> np.ndarray:
    """Round to float32 values that bfloat16 and float16 both hold, so that the storage type changes nothing."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = ((bits + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.abs(rounded) < 2.0**-14, np.float32(0), rounded)


class Draw:
    """Collects named random tensors. `gain` is relative to the size that keeps a signal's variance."""

    def __init__(self, seed: int):
        self.seed = seed
        self.tensors: dict[str, np.ndarray] = {}

    def random(self, name: str) -> np.random.RandomState:
        return np.random.RandomState((zlib.crc32(name.encode()) ^ (self.seed * 0x9E3779B1)) & 0xFFFFFFFF)

    def normal(self, name: str, *shape: int, std: float) -> None:
        self.tensors[name] = half_exact(self.random(name).standard_normal(shape) * std)

    def uniform(self, name: str, *shape: int, low: float = 0.6, high: float = 1.4) -> None:
        self.tensors[name] = half_exact(self.random(name).uniform(low, high, shape))

    def linear(self, name: str, out: int, inp: int, gain: float = 1.0, bias: bool = False) -> None:
        self.normal(f"{name}.weight", out, inp, std=gain / inp**0.5)
        if bias:
            self.normal(f"{name}.bias", out, std=0.1)

    def conv(self, name: str, out: int, inp: int, kernel: int, gain: float = 1.0, bias: bool = True) -> None:
        self.normal(f"{name}.weight", out, inp, kernel, std=gain / (inp * kernel) ** 0.5)
        if bias:
            self.normal(f"{name}.bias", out, std=0.1)

    def transposed_conv(self, name: str, inp: int, out: int, kernel: int, stride: int, gain: float = 1.0) -> None:
        self.normal(f"{name}.weight", inp, out, kernel, std=gain / (inp * kernel // stride) ** 0.5)
        self.normal(f"{name}.bias", out, std=0.1)

    def block(self, p: str, c: dict, *, qk_norm: bool = False, scales: bool = False, gated: bool = True) -> None:
        """One transformer layer: attention, its norms and, when `gated`, the SwiGLU."""
        width, heads, kv, dim = (c[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads",
                                                "head_dim"))
        for part, out, inp in (("q", heads * dim, width), ("k", kv * dim, width), ("v", kv * dim, width),
                               ("o", width, heads * dim)):
            self.linear(f"{p}self_attn.{part}_proj", out, inp)
        if qk_norm:
            self.uniform(f"{p}self_attn.q_norm.weight", dim, low=0.9, high=1.9)
            self.uniform(f"{p}self_attn.k_norm.weight", dim, low=0.9, high=1.9)
        self.uniform(f"{p}input_layernorm.weight", width)
        self.uniform(f"{p}post_attention_layernorm.weight", width)
        if gated:
            self.linear(f"{p}mlp.gate_proj", c["intermediate_size"], width)
            self.linear(f"{p}mlp.up_proj", c["intermediate_size"], width)
            self.linear(f"{p}mlp.down_proj", width, c["intermediate_size"], gain=1.5)
        if scales:
            self.uniform(f"{p}self_attn_layer_scale.scale", width, low=0.2, high=0.6)
            self.uniform(f"{p}mlp_layer_scale.scale", width, low=0.2, high=0.6)

    def codebook(self, p: str, sums: str, size: int, width: int, std: float) -> None:
        """Embedding sums and usages; a few entries were never used (below the clamp of 1e-5)."""
        r = self.random(p)
        rows = r.standard_normal((size, width)) * std
        usage = r.uniform(0.3, 40.0, size)
        unused = r.permutation(size)[:6]
        usage[unused] = [0, 0, 0, 2e-6, 2e-6, 2e-6]
        self.tensors[p + sums] = (rows * np.maximum(usage, 1e-5)[:, None]).astype(np.float32)
        self.tensors[p + "cluster_usage"] = usage.astype(np.float32)


def main_tensors(config: dict, seed: int = 0) -> dict[str, np.ndarray]:
    """Every tensor of model.safetensors, float32 in torch's layout."""
    d, talker = Draw(seed), config["talker_config"]
    predictor = talker["code_predictor_config"]
    width, narrow, text = talker["hidden_size"], predictor["hidden_size"], talker["text_hidden_size"]
    d.normal("talker.model.text_embedding.weight", talker["text_vocab_size"], text, std=1.0)
    d.normal("talker.model.codec_embedding.weight", CODEC_ROWS, width, std=0.7)
    for i in range(talker["num_hidden_layers"]):
        d.block(f"talker.model.layers.{i}.", talker, qk_norm=True)
    d.uniform("talker.model.norm.weight", width)
    d.linear("talker.text_projection.linear_fc1", text, text, gain=1.2, bias=True)
    d.linear("talker.text_projection.linear_fc2", width, text, gain=1.6, bias=True)
    d.linear("talker.codec_head", CODEC_ROWS, width, gain=3.0)
    head = d.tensors["talker.codec_head.weight"]
    head[EOS_ROW] = half_exact(head[EOS_ROW] * 1.9)  # or a random model would all but never end
    p = "talker.code_predictor."
    for i in range(predictor["num_hidden_layers"]):
        d.block(f"{p}model.layers.{i}.", predictor, qk_norm=True)
    d.uniform(f"{p}model.norm.weight", narrow)
    for g in range(15):
        d.normal(f"{p}model.codec_embedding.{g}.weight", 2048, width, std=0.3)
        d.linear(f"{p}lm_head.{g}", 2048, narrow, gain=3.0)
    if narrow != width:
        d.linear(f"{p}small_to_mtp_projection", narrow, width, bias=True)
    if "speaker_encoder_config" in config:
        _speaker_encoder(d, config["speaker_encoder_config"])
    return d.tensors


def _speaker_encoder(d: Draw, c: dict) -> None:
    p, (stem, *_, wide) = "speaker_encoder.", c["enc_channels"]
    d.conv(f"{p}blocks.0.conv", stem, c["mel_dim"], 5)
    kernel = d.tensors[f"{p}blocks.0.conv.weight"]  # log-mel sits far below 0: zero-sum kernels ignore that offset
    d.tensors[f"{p}blocks.0.conv.weight"] = half_exact(kernel - kernel.mean(axis=(1, 2), keepdims=True))
    for b in (1, 2, 3):
        d.conv(f"{p}blocks.{b}.tdnn1.conv", stem, stem, 1, gain=1.3)
        for i in range(7):
            d.conv(f"{p}blocks.{b}.res2net_block.blocks.{i}.conv", stem // 8, stem // 8, 3, gain=1.3)
        d.conv(f"{p}blocks.{b}.tdnn2.conv", stem, stem, 1, gain=1.3)
        d.conv(f"{p}blocks.{b}.se_block.conv1", c["enc_se_channels"], stem, 1, gain=1.3)
        d.conv(f"{p}blocks.{b}.se_block.conv2", stem, c["enc_se_channels"], 1, gain=1.3)
    d.conv(f"{p}mfa.conv", wide, 3 * stem, 1, gain=1.3)
    d.conv(f"{p}asp.tdnn.conv", c["enc_attention_channels"], 3 * wide, 1, gain=1.3)
    d.conv(f"{p}asp.conv", wide, c["enc_attention_channels"], 1, gain=2.0)
    d.conv(f"{p}fc", c["enc_dim"], 2 * wide, 1)


def codec_tensors(config: dict, seed: int = 0) -> dict[str, np.ndarray]:
    """Every tensor of speech_tokenizer/model.safetensors, float32 in torch's layout."""
    d = Draw(seed)
    _code2wav(d, config["decoder_config"])
    _mimi_encoder(d, config["encoder_config"])
    return d.tensors


def _code2wav(d: Draw, c: dict) -> None:
    width, latent, code, channels = c["hidden_size"], c["latent_dim"], c["codebook_dim"], c["decoder_dim"]
    for part, books, std in (("rvq_first", 1, 1.0), ("rvq_rest", 15, 0.4)):
        p = f"decoder.quantizer.{part}."
        d.conv(f"{p}input_proj", code // 2, code, 1, bias=False)
        d.conv(f"{p}output_proj", code, code // 2, 1, bias=False)
        for i in range(books):
            d.codebook(f"{p}vq.layers.{i}._codebook.", "embedding_sum", 2048, code // 2, std)
    d.conv("decoder.pre_conv.conv", latent, code, 3)
    p = "decoder.pre_transformer."
    d.linear(f"{p}input_proj", width, latent, bias=True)
    d.linear(f"{p}output_proj", latent, width, bias=True)
    d.uniform(f"{p}norm.weight", width)
    for i in range(8):
        d.block(f"{p}layers.{i}.", c, scales=True)
    for i, ratio in enumerate(c["upsampling_ratios"]):
        p = f"decoder.upsample.{i}."
        d.transposed_conv(f"{p}0.conv", latent, latent, ratio, ratio)
        d.conv(f"{p}1.dwconv.conv", latent, 1, 7)
        d.uniform(f"{p}1.norm.weight", latent)
        d.normal(f"{p}1.norm.bias", latent, std=0.1)
        d.linear(f"{p}1.pwconv1", 4 * latent, latent, bias=True)
        d.linear(f"{p}1.pwconv2", latent, 4 * latent, bias=True)
        d.uniform(f"{p}1.gamma", latent, low=0.2, high=0.8)
    d.conv("decoder.decoder.0.conv", channels, latent, 7)
    for i, rate in enumerate(c["upsample_rates"], start=1):
        p = f"decoder.decoder.{i}.block."
        _snake(d, f"{p}0", channels)
        d.transposed_conv(f"{p}1.conv", channels, channels // 2, 2 * rate, rate, gain=0.8)
        channels //= 2
        for unit in (2, 3, 4):
            _snake(d, f"{p}{unit}.act1", channels)
            d.conv(f"{p}{unit}.conv1.conv", channels, channels, 7, gain=0.6)
            _snake(d, f"{p}{unit}.act2", channels)
            d.conv(f"{p}{unit}.conv2.conv", channels, channels, 1, gain=0.5)
    _snake(d, "decoder.decoder.5", channels)
    d.conv("decoder.decoder.6.conv", 1, channels, 7, gain=0.11)  # keeps nearly all samples inside [-1, 1]


def _snake(d: Draw, name: str, channels: int) -> None:
    d.normal(f"{name}.alpha", channels, std=0.3)
    d.normal(f"{name}.beta", channels, std=0.3)


def _mimi_encoder(d: Draw, c: dict) -> None:
    width, code, p = c["hidden_size"], c["codebook_dim"], "encoder.encoder.layers."
    n, channels = 1, c["num_filters"]
    d.conv(f"{p}0.conv", channels, 1, 7, gain=2.0)
    for ratio in reversed(c["upsampling_ratios"]):
        d.conv(f"{p}{n}.block.1.conv", channels // 2, channels, 3)
        d.conv(f"{p}{n}.block.3.conv", channels, channels // 2, 1)
        d.conv(f"{p}{n + 2}.conv", 2 * channels, channels, 2 * ratio, gain=1.5)
        n, channels = n + 3, 2 * channels
    d.conv(f"{p}{n + 1}.conv", width, channels, 3, gain=1.5)
    for i in range(c["num_hidden_layers"]):
        p = f"encoder.encoder_transformer.layers.{i}."
        d.block(p, c, scales=True, gated=False)
        d.normal(f"{p}input_layernorm.bias", width, std=0.1)
        d.normal(f"{p}post_attention_layernorm.bias", width, std=0.1)
        d.linear(f"{p}mlp.fc1", c["intermediate_size"], width)
        d.linear(f"{p}mlp.fc2", width, c["intermediate_size"])
    d.conv("encoder.downsample.conv", width, width, 4, bias=False)
    for part, books in (("semantic", 1), ("acoustic", 31)):
        p = f"encoder.quantizer.{part}_residual_vector_quantizer."
        d.conv(f"{p}input_proj", code, width, 1, bias=False)
        d.conv(f"{p}output_proj", width, code, 1, bias=False)
        for i in range(books):
            d.codebook(f"{p}layers.{i}.codebook.", "embed_sum", 2048, code, 0.8 * 0.93**i)
            d.tensors[f"{p}layers.{i}.codebook.initialized"] = np.ones(1, np.float32)
