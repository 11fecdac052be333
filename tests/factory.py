"""Writes tiny random Qwen3-TTS models: a GGUF pair or a checkpoint folder, in well under a second.

    python tests/factory.py OUTDIR      # a pair to try the command line with

The GGUF writer is deliberately apart from the package's converter, so that each can be held against the other.
"""

import argparse
import json
from functools import lru_cache
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q
from gguf import GGUFValueType as V
from tiny_model import (
    CODEC_IDS,
    CODEC_ROWS,
    CONTROL_TOKENS,
    EOS_ROW,
    NOT_SPECIAL,
    PLAIN_ADDED_TOKENS,
    SPEAKER_DIALECTS,
    TEXT_VOCAB,
    codec_config,
    codec_tensors,
    generation_config,
    main_config,
    main_tensors,
    merges,
    text_tokens,
)

TYPES = {"f32": Q.F32, "f16": Q.F16, "q8_0": Q.Q8_0}
FILE_TYPES = {"f32": 0, "f16": 1, "q8_0": 7}
U32, I32, F32, STR, BOOL = V.UINT32, V.INT32, V.FLOAT32, V.STRING, V.BOOL


def tiny_pair(folder, *, equal: bool = False, variant: str = "base", seed: int = 0, type: str = "f32",
              extras: bool | None = None, talker_edits: dict | None = None,
              mmproj_edits: dict | None = None) -> tuple[Path, Path]:
    """Write talker and mmproj into `folder` (made when missing); return both paths.

    equal          predictor as wide as the talker, no projection (the 0.6B layout)
    variant        base, custom_voice (speaker rows, dialects) or voice_design; the latter two have no speaker encoder
    type           f32, f16 or q8_0, with llama.cpp's exceptions
    extras         the `tts_cli.*` keys llama.cpp does not write; default: only where llama.cpp cannot convert
    *_edits        metadata key or tensor name -> new value, or None to leave it out
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = main_config(variant, equal)
    main, wav = _drawn(variant, equal, seed)
    extras = variant != "base" if extras is None else extras
    common = _common_metadata(config, type, extras)
    talker = folder / f"tiny-{variant}-{type.upper()}.gguf"
    mmproj = folder / f"mmproj-tiny-{variant}-{type.upper()}.gguf"
    _write(talker, "qwen3tts", common | _talker_metadata(config, extras),
           talker_tensors(config, main), type, talker_edits)
    _write(mmproj, "clip", common | {"general.type": (V.STRING, "mmproj")} | _mmproj_metadata(config),
           mmproj_tensors(config, main, wav), type, mmproj_edits)
    return talker, mmproj


@lru_cache(maxsize=4)
def _drawn(variant: str, equal: bool, seed: int) -> tuple[dict, dict]:
    return main_tensors(main_config(variant, equal), seed), codec_tensors(codec_config(), seed)


def tiny_checkpoint(folder, *, variant: str = "base", equal: bool = False, seed: int = 0) -> Path:
    """Write the same model as a checkpoint folder in the published layout (bfloat16 model, float32 codec)."""
    import torch
    from safetensors.torch import save_file

    folder = Path(folder)
    (folder / "speech_tokenizer").mkdir(parents=True, exist_ok=True)
    main, wav = _drawn(variant, equal, seed)
    _json(folder / "config.json", main_config(variant, equal))
    _json(folder / "generation_config.json", generation_config())
    _json(folder / "speech_tokenizer" / "config.json", codec_config())
    tokens = text_tokens()
    plain = len(tokens) - len(CONTROL_TOKENS)
    _json(folder / "vocab.json", {token: i for i, token in enumerate(tokens[:plain])})
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges(), ""]), encoding="utf-8")
    added = {str(plain + i): dict(content=t, lstrip=False, normalized=False, rstrip=False, single_word=False,
                                  special=t not in NOT_SPECIAL) for i, t in enumerate(CONTROL_TOKENS)}
    _json(folder / "tokenizer_config.json", dict(
        add_bos_token=False, add_prefix_space=False, added_tokens_decoder=added, bos_token=None,
        eos_token="<|im_end|>", pad_token="<|endoftext|>", errors="replace", model_max_length=131072,
        tokenizer_class="Qwen2Tokenizer", unk_token=None))
    save_file({k: torch.from_numpy(x).to(torch.bfloat16) for k, x in main.items()}, folder / "model.safetensors",
              metadata={"format": "pt"})
    save_file({k: torch.from_numpy(x) for k, x in wav.items()}, folder / "speech_tokenizer" / "model.safetensors",
              metadata={"format": "pt"})
    return folder


def _json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")


def codec_row_names(talker: dict) -> list[str]:
    """Token text of each of the 3072 codec rows: the name of the id field that points at it, or its number."""
    names = {row: f"<|{field.removesuffix('_id')}|>" for field, row in CODEC_IDS.items()}
    names |= {row: f"<|codec_language_{name}|>" for name, row in talker["codec_language_id"].items()}
    names |= {row: f"<|spk_{name}|>" for name, row in talker["spk_id"].items()}
    return [names.get(i, f"<|codec_{i}|>") for i in range(CODEC_ROWS)]


def _token_type(token: str) -> gguf.TokenType:
    if token in PLAIN_ADDED_TOKENS:
        return gguf.TokenType.USER_DEFINED
    return gguf.TokenType.CONTROL if token in CONTROL_TOKENS else gguf.TokenType.NORMAL


def _common_metadata(config: dict, type: str, extras: bool) -> dict:
    generation = generation_config()
    own = {"tts_cli.model_type": (STR, config["tts_model_type"]), "tts_cli.model_size": (STR, config["tts_model_size"])}
    return {
        "general.type": (STR, "model"), "general.name": (STR, "Tiny"), "general.file_type": (U32, FILE_TYPES[type]),
        "general.quantization_version": (U32, 2),
        "general.sampling.top_k": (I32, generation["top_k"]), "general.sampling.top_p": (F32, generation["top_p"]),
        "general.sampling.temp": (F32, generation["temperature"]),
        "general.sampling.penalty_repeat": (F32, generation["repetition_penalty"]),
    } | (own if extras else {})


def _talker_metadata(config: dict, extras: bool) -> dict:
    t = config["talker_config"]
    tokens = text_tokens()
    types = [int(_token_type(x)) for x in tokens] + [int(gguf.TokenType.UNUSED)] * (TEXT_VOCAB - len(tokens))
    tokens += [f"[PAD{i}]" for i in range(len(tokens), TEXT_VOCAB)] + codec_row_names(t)
    total = TEXT_VOCAB + CODEC_ROWS
    suppressed = [i for i in range(total - 1024, total) if i != TEXT_VOCAB + EOS_ROW]
    dialects = [f"{speaker}={dialect}" for speaker, dialect in SPEAKER_DIALECTS.items() if speaker in t["spk_id"]]
    return {
        "qwen3tts.block_count": (U32, t["num_hidden_layers"]),
        "qwen3tts.context_length": (U32, t["max_position_embeddings"]),
        "qwen3tts.embedding_length": (U32, t["hidden_size"]),
        "qwen3tts.feed_forward_length": (U32, t["intermediate_size"]),
        "qwen3tts.attention.head_count": (U32, t["num_attention_heads"]),
        "qwen3tts.attention.head_count_kv": (U32, t["num_key_value_heads"]),
        "qwen3tts.attention.key_length": (U32, t["head_dim"]),
        "qwen3tts.attention.value_length": (U32, t["head_dim"]),
        "qwen3tts.attention.layer_norm_rms_epsilon": (F32, t["rms_norm_eps"]),
        "qwen3tts.rope.freq_base": (F32, float(t["rope_theta"])),
        "qwen3tts.rope.dimension_sections": (I32, [*t["rope_scaling"]["mrope_section"], 0]),
        "tokenizer.ggml.model": (STR, "gpt2"), "tokenizer.ggml.pre": (STR, "qwen2"),
        "tokenizer.ggml.tokens": (STR, tokens),
        "tokenizer.ggml.token_type": (I32, types + [int(gguf.TokenType.CONTROL)] * CODEC_ROWS),
        "tokenizer.ggml.merges": (STR, merges()),
        "tokenizer.ggml.suppress_tokens": (I32, suppressed),
        "tokenizer.ggml.eos_token_id": (U32, TEXT_VOCAB + EOS_ROW),
        "tokenizer.ggml.add_eos_token": (BOOL, False), "tokenizer.ggml.add_bos_token": (BOOL, False),
    } | ({"tts_cli.speaker_dialects": (STR, dialects)} if extras and dialects else {})


def _mmproj_metadata(config: dict) -> dict:
    width, p = config["talker_config"]["hidden_size"], config["talker_config"]["code_predictor_config"]
    cloning = "speaker_encoder_config" in config
    encoder = {
        "clip.audio.projector_type": (STR, "qwen3tts_spkenc"), "clip.audio.projection_dim": (U32, width),
        "clip.audio.num_mel_bins": (U32, 128), "clip.audio.block_count": (U32, 3),
        "clip.audio.embedding_length": (U32, 1536), "clip.audio.feed_forward_length": (U32, 1536),
        "clip.audio.attention.head_count": (U32, 1), "clip.audio.attention.layer_norm_epsilon": (F32, 1e-5)}
    return {"clip.has_audio_encoder": (BOOL, cloning), "clip.has_gen_audio_encoder": (BOOL, True),
            **(encoder if cloning else {}),
            "clip.gen.audio.projector_type": (STR, "qwen3tts_gen"), "clip.gen.audio.projection_dim": (U32, width),
            "clip.gen.audio.embedding_length": (U32, p["hidden_size"]),
            "clip.gen.audio.feed_forward_length": (U32, p["intermediate_size"]),
            "clip.gen.audio.block_count": (U32, p["num_hidden_layers"]),
            "clip.gen.audio.attention.head_count": (U32, p["num_attention_heads"]),
            "clip.gen.audio.attention.head_count_kv": (U32, p["num_key_value_heads"]),
            "clip.gen.audio.attention.layer_norm_epsilon": (F32, p["rms_norm_eps"])}


def _block(target: str, source: str, tensors: dict, names: dict[str, str]) -> dict[str, np.ndarray]:
    return {target + to: tensors[source + of] for to, of in names.items() if source + of in tensors}


ATTENTION = {f"attn_{x}.weight": f"self_attn.{x}_proj.weight" for x in "qkv"}
FEED_FORWARD = {f"ffn_{x}.weight": f"mlp.{x}_proj.weight" for x in ("gate", "up", "down")}
QK_NORM = {f"attn_{x}_norm.weight": f"self_attn.{x}_norm.weight" for x in "qk"}
TALKER_BLOCK = ATTENTION | FEED_FORWARD | QK_NORM | {
    "attn_output.weight": "self_attn.o_proj.weight", "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight"}
MMPROJ_BLOCK = ATTENTION | FEED_FORWARD | QK_NORM | {
    "attn_out.weight": "self_attn.o_proj.weight", "ln1.weight": "input_layernorm.weight",
    "ln2.weight": "post_attention_layernorm.weight", "ls1.weight": "self_attn_layer_scale.scale",
    "ls2.weight": "mlp_layer_scale.scale"}


def talker_tensors(config: dict, main: dict) -> dict[str, np.ndarray]:
    """GGUF name -> float32, with the text projection already applied to the text rows."""
    p = "talker.text_projection.linear_fc"
    w1, b1, w2, b2 = (main[p + x].astype(np.float64) for x in ("1.weight", "1.bias", "2.weight", "2.bias"))
    hidden = main["talker.model.text_embedding.weight"].astype(np.float64) @ w1.T + b1
    text = (hidden / (1 + np.exp(-hidden))) @ w2.T + b2
    out = {"token_embd.weight": np.concatenate([text.astype(np.float32), main["talker.model.codec_embedding.weight"]]),
           "output_norm.weight": main["talker.model.norm.weight"], "output.weight": main["talker.codec_head.weight"]}
    for i in range(config["talker_config"]["num_hidden_layers"]):
        out |= _block(f"blk.{i}.", f"talker.model.layers.{i}.", main, TALKER_BLOCK)
    return out


def mmproj_tensors(config: dict, main: dict, wav: dict) -> dict[str, np.ndarray]:
    """GGUF name -> float32: code predictor, code2wav and, for a base model, the speaker encoder."""
    p, to = "talker.code_predictor.", "a.gen.code."
    out = {to + "out_embd.weight": main["talker.model.codec_embedding.weight"],
           to + "embd.weight": np.stack([main[f"{p}model.codec_embedding.{g}.weight"] for g in range(15)]),
           to + "head.weight": np.stack([main[f"{p}lm_head.{g}.weight"] for g in range(15)]),
           to + "output_norm.weight": main[f"{p}model.norm.weight"]}
    out |= _pair(to + "proj_in", main, f"{p}small_to_mtp_projection")
    for i in range(config["talker_config"]["code_predictor_config"]["num_hidden_layers"]):
        out |= _block(f"{to}blk.{i}.", f"{p}model.layers.{i}.", main, MMPROJ_BLOCK)
    out |= _code2wav_tensors(wav)
    if "speaker_encoder_config" in config:
        out |= _speaker_encoder_tensors(main)
    return out


def _pair(target: str, tensors: dict, source: str) -> dict[str, np.ndarray]:
    return _block(target, source, tensors, {".weight": ".weight", ".bias": ".bias"})


def _code2wav_tensors(wav: dict) -> dict[str, np.ndarray]:
    to, out = "a.gen.wav.", {}
    for part, books in (("first", 1), ("rest", 15)):
        p = f"decoder.quantizer.rvq_{part}."
        for side in ("in", "out"):
            out[f"{to}quant.{part}.{side}_proj.weight"] = wav[f"{p}{side}put_proj.weight"][:, :, 0]
        rows = [wav[f"{p}vq.layers.{i}._codebook.embedding_sum"]
                / np.maximum(wav[f"{p}vq.layers.{i}._codebook.cluster_usage"], np.float32(1e-5))[:, None]
                for i in range(books)]
        out[f"{to}quant.{part}.codebook.weight"] = np.stack(rows) if books > 1 else rows[0]
    out |= _pair(to + "pre_conv", wav, "decoder.pre_conv.conv")
    p = "decoder.pre_transformer."
    out |= _pair(to + "tfm.in_proj", wav, p + "input_proj") | _pair(to + "tfm.out_proj", wav, p + "output_proj")
    out[to + "tfm.output_norm.weight"] = wav[p + "norm.weight"]
    for i in range(8):
        out |= _block(f"{to}tfm.blk.{i}.", f"{p}layers.{i}.", wav, MMPROJ_BLOCK)
    for i in range(2):
        up, p = f"{to}up.blk.{i}.", f"decoder.upsample.{i}."
        for name, source in (("conv", "0.conv"), ("dwconv", "1.dwconv.conv"), ("norm", "1.norm"),
                             ("pw1", "1.pwconv1"), ("pw2", "1.pwconv2")):
            out |= _pair(up + name, wav, p + source)
        out[up + "gamma"] = wav[p + "1.gamma"]
    out |= _pair(to + "dac.entry", wav, "decoder.decoder.0.conv")
    for i in range(4):
        dac, p = f"{to}dac.blk.{i}.", f"decoder.decoder.{i + 1}.block."
        out |= _folded_snake(dac + "snake", wav, p + "0") | _pair(dac + "conv", wav, p + "1.conv")
        for unit in range(3):
            for k in (1, 2):
                out |= _folded_snake(f"{dac}res.{unit}.act{k}", wav, f"{p}{unit + 2}.act{k}")
                out |= _pair(f"{dac}res.{unit}.conv{k}", wav, f"{p}{unit + 2}.conv{k}.conv")
    return out | _folded_snake(to + "dac.post_snake", wav, "decoder.decoder.5") | _pair(
        to + "dac.post_conv", wav, "decoder.decoder.6.conv")


def _folded_snake(target: str, wav: dict, source: str) -> dict[str, np.ndarray]:
    alpha, beta = (wav[f"{source}.{x}"].astype(np.float64) for x in ("alpha", "beta"))
    return {f"{target}.alpha": np.exp(alpha).astype(np.float32),
            f"{target}.beta": (1 / (np.exp(beta) + 1e-9)).astype(np.float32)}


def _speaker_encoder_tensors(main: dict) -> dict[str, np.ndarray]:
    p = "speaker_encoder."
    names = {"a.conv1d.0": "blocks.0.conv", "a.conv_out": "mfa.conv", "a.asp_tdnn": "asp.tdnn.conv",
             "a.asp_attn": "asp.conv", "mm.a.fc": "fc"}
    for b in (1, 2, 3):
        names |= {f"a.blk.{b}.conv_pw{k}": f"blocks.{b}.tdnn{k}.conv" for k in (1, 2)}
        names |= {f"a.blk.{b}.se_conv{k}": f"blocks.{b}.se_block.conv{k}" for k in (1, 2)}
        names |= {f"a.blk.{b}.res2.{i}": f"blocks.{b}.res2net_block.blocks.{i}.conv" for i in range(7)}
    return {name: x for to, of in names.items() for name, x in _pair(to, main, p + of).items()}


def storage_type(name: str, shape: tuple[int, ...], type: Q) -> Q:
    """llama.cpp's rules: vectors and transposed convolutions F32, convolutions F16, odd rows never quantised."""
    wav = name.startswith("a.gen.wav.")
    transposed = wav and name.endswith(".conv.weight")
    if len(shape) == 1 or transposed or (name.startswith("a.gen.code.") and "ffn_down" in name):
        return Q.F32
    if wav and len(shape) == 3 and "codebook" not in name:
        return Q.F16
    if type != Q.F32 and shape[-1] % gguf.GGML_QUANT_SIZES[type][0]:
        return Q.F16
    return type


def _write(path: Path, architecture: str, metadata: dict, tensors: dict, type: str, edits: dict | None) -> None:
    edits = dict(edits or {})
    writer = gguf.GGUFWriter(path, edits.pop("general.architecture", architecture))
    for name in [name for name in edits if name in tensors or isinstance(edits[name], np.ndarray)]:
        tensors[name] = edits.pop(name)
    for key, value in edits.items():
        metadata[key] = None if value is None else (_kind(value, metadata.get(key, (None, None))), value)
    for key, entry in metadata.items():
        if entry is not None:
            kind, value = entry
            many = isinstance(value, list)
            writer.add_key_value(key, value, V.ARRAY if many else kind, sub_type=kind if many else None)
    for name, x in tensors.items():
        if x is not None:
            stored = storage_type(name, x.shape, TYPES[type])
            if stored in (Q.F32, Q.F16):
                writer.add_tensor(name, np.ascontiguousarray(x, np.float32 if stored == Q.F32 else np.float16))
            else:
                writer.add_tensor(name, gguf.quants.quantize(x, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _kind(value, replaced: tuple) -> V:
    """The value type of an edit: that of the entry it replaces when the Python types agree."""
    kind, old = replaced
    first, old = (x[0] if isinstance(x, list) and x else x for x in (value, old))
    return kind if first.__class__ is old.__class__ else {bool: BOOL, int: U32, float: F32, str: STR}[first.__class__]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write a tiny random talker and mmproj GGUF.")
    parser.add_argument("folder", type=Path)
    for written in tiny_pair(parser.parse_args().folder):
        print(written)
