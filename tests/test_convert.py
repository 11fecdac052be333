"""Checkpoint folder to GGUF pair: layout, numbers, metadata.

tests/data/llama_cpp_layout.json lists keys, tensors, shapes and types of the pair llama.cpp's own converter writes for
a model of the factory's dimensions, as F32 and as Q8_0.
"""

import hashlib
import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from checkpoints import File, edit_json, edit_weights, files
from factory import tiny_checkpoint, tiny_pair
from safetensors.torch import load_file, save_file

from tts_cli.engine import SpeechRequest
from tts_cli.gguf.write import TYPES
from tts_cli.loading import load_engine
from tts_cli.qwen3tts.convert import convert

LAYOUT = json.loads((Path(__file__).parent / "data" / "llama_cpp_layout.json").read_text(encoding="utf-8"))


@pytest.fixture
def folder(checkpoint, tmp_path):
    """A copy of the base checkpoint that a test may damage."""
    return Path(shutil.copytree(checkpoint, tmp_path / "tiny model é"))


@pytest.mark.parametrize("type, column", [("f32", 2), ("q8_0", 3)])
def test_layout_is_that_of_llama_cpp(checkpoint, tmp_path, type, column):
    for file, part in zip(files(convert(checkpoint, tmp_path, type)), ("talker", "mmproj"), strict=True):
        tensors = LAYOUT[part]["tensors"]
        ours = {name for name in file.types if name.startswith("tts_cli.")}
        assert [(n, t) for n, t in file.types.items() if n not in ours] == [(row[0], row[column]) for row in tensors]
        assert {n: s for n, s in file.shapes.items() if n not in ours} == {row[0]: row[1] for row in tensors}
        found = []
        for key, *_ in LAYOUT[part]["keys"]:
            value = file.metadata[key]
            if isinstance(value, list) and len(value) > 8:
                value = "sha256:" + hashlib.sha256(json.dumps(value, ensure_ascii=False).encode()).hexdigest()
            found.append([key, file.kinds[key], value])
        assert found == LAYOUT[part]["keys"]
        theirs = {key for key, *_ in LAYOUT[part]["keys"]} | {"general.name", "general.file_type"}
        assert all(key.startswith("tts_cli.") for key in file.metadata if key not in theirs)
        assert file.metadata["general.file_type"] == {"f32": 0, "q8_0": 7}[type]


@pytest.mark.parametrize("variant, equal, type", [
    ("base", False, "f32"), ("base", False, "f16"), ("base", False, "q8_0"), ("base", True, "f32"),
    ("custom_voice", False, "f32"), ("voice_design", False, "q8_0")])
def test_numbers_are_those_of_the_factory_s_own_writer(tmp_path, variant, equal, type):
    source = tiny_checkpoint(tmp_path / "checkpoint", variant=variant, equal=equal, seed=3)
    ours = files(convert(source, tmp_path, type))
    theirs = files(tiny_pair(tmp_path / "pair", variant=variant, equal=equal, seed=3, type=type, extras=True))
    for mine, other in zip(ours, theirs, strict=True):
        theirs = {n for n in mine.types if not n.startswith("tts_cli.")}
        assert {n: mine.types[n] for n in theirs} == other.types
        assert {n: mine.shapes[n] for n in theirs} == other.shapes
        for name, expected in other.tensors.items():
            if name == "token_embd.weight" and type != "f32":
                # computed numbers: one in thousands falls on the other side of a rounding step
                assert np.mean(mine.tensors[name] != expected) < 1e-2, name
                step = np.abs(expected).max() / (127 if type == "q8_0" else 1024)
                np.testing.assert_allclose(mine.tensors[name], expected, atol=1.01 * step, rtol=0)
            else:
                np.testing.assert_allclose(mine.tensors[name], expected, rtol=3e-7, atol=4e-6, err_msg=name)
        for key, value in other.metadata.items():
            assert key == "general.name" or mine.metadata[key] == value, key
    assert ("a.gen.code.proj_in.weight" in ours[1].types) is not equal
    assert ("mm.a.fc.weight" in ours[1].types) is (variant == "base")
    assert ours[1].metadata["clip.has_audio_encoder"] is (variant == "base")
    assert ("clip.audio.projector_type" in ours[1].metadata) is (variant == "base")


def test_the_folded_table_is_the_projection_of_every_text_row(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr("tts_cli.qwen3tts.convert.BLOCK", 5000)  # 52 rows of 96: many blocks, the last one short
    talker = File(convert(checkpoint, tmp_path, "f32")[0])
    w = {k: v.double() for k, v in load_file(checkpoint / "model.safetensors").items()}
    p = "talker.text_projection.linear_fc"
    hidden = w["talker.model.text_embedding.weight"] @ w[f"{p}1.weight"].T + w[f"{p}1.bias"]
    rows = torch.nn.functional.silu(hidden) @ w[f"{p}2.weight"].T + w[f"{p}2.bias"]
    table = talker.tensors["token_embd.weight"]
    assert np.abs(table[:len(rows)] - rows.numpy()).max() < 5e-6
    assert np.array_equal(table[len(rows):], w["talker.model.codec_embedding.weight"].float().numpy())


def test_codebooks_and_snakes(checkpoint, tmp_path):
    mmproj = File(convert(checkpoint, tmp_path, "f32")[1])
    wav = load_file(checkpoint / "speech_tokenizer" / "model.safetensors")

    def set_unused(tensors):
        tensors["decoder.quantizer.rvq_rest.vq.layers.14._codebook.cluster_usage"][:2] = torch.tensor([0.0, 2e-6])

    damaged = Path(shutil.copytree(checkpoint, tmp_path / "unused"))
    edit_weights(damaged / "speech_tokenizer" / "model.safetensors", set_unused)
    unused = File(convert(damaged, tmp_path, "f32")[1])
    book = "decoder.quantizer.rvq_rest.vq.layers.14._codebook."
    sums, usage = wav[f"{book}embedding_sum"], wav[f"{book}cluster_usage"]
    last = "a.gen.wav.quant.rest.codebook.weight"
    assert np.array_equal(mmproj.tensors[last][14], (sums / usage.clamp_min(1e-5)[:, None]).numpy())
    assert np.allclose(unused.tensors[last][14, :2], sums[:2].numpy() * 1e5, rtol=1e-6)
    alpha, beta = (wav[f"decoder.decoder.2.block.0.{x}"].double() for x in ("alpha", "beta"))
    assert np.allclose(mmproj.tensors["a.gen.wav.dac.blk.1.snake.alpha"], alpha.exp(), rtol=1e-6)
    assert np.allclose(mmproj.tensors["a.gen.wav.dac.blk.1.snake.beta"], 1 / (beta.exp() + 1e-9), rtol=1e-6)


@pytest.mark.parametrize("type", TYPES)
def test_every_type_the_gguf_package_can_make(checkpoint, tmp_path, type):
    talker, mmproj = files(convert(checkpoint, tmp_path, type))
    block = gguf.GGML_QUANT_SIZES[TYPES[type]][0]
    for name, stored in {**talker.types, **mmproj.types}.items():
        shape = (talker.shapes | mmproj.shapes)[name]
        convolution = name.startswith("a.gen.wav.") and len(shape) == 3 and "codebook" not in name
        if name.startswith("tts_cli.enc."):
            full = type == "f32" or len(shape) < 2 or "codebook" in name
            assert stored == ("F32" if full else "F16"), name
        elif len(shape) < 2 or name.endswith("ffn_down.weight") and "code" in name or \
                convolution and ".up.blk." in name and ".conv." in name or \
                convolution and ".dac.blk." in name and name.endswith(".conv.weight"):
            assert stored == "F32", name
        elif convolution:
            assert stored == "F16", name
        elif name.startswith(("a.", "mm.")) and not name.startswith("a.gen."):
            assert stored == ("F32" if type == "f32" else "F16"), name
        elif name in ("token_embd.weight", "output.weight") and type.startswith("tq"):
            assert stored == "F16", name
        else:
            assert stored == (type.upper() if shape[-1] % block == 0 else "F16"), name


def test_names_and_metadata_of_a_custom_voice_model(tmp_path):
    source = tiny_checkpoint(tmp_path / "Qwen3-TTS-tiny", variant="custom_voice")
    paths = convert(source, tmp_path / "new" / "folder", "Q8_0")
    assert [p.name for p in paths] == ["Qwen3-TTS-tiny-Q8_0.gguf", "mmproj-Qwen3-TTS-tiny-Q8_0.gguf"]
    talker, mmproj = files(paths)
    tokens = talker.metadata["tokenizer.ggml.tokens"]
    assert tokens[2048 + 3061] == "<|spk_ryan|>" and tokens[2048 + 2062] == "<|codec_language_sichuan_dialect|>"
    assert tokens[2048 + 2150] == "<|codec_eos_token|>" and tokens[2048 + 7] == "<|codec_7|>"
    assert tokens[2047] == "[PAD2047]" and talker.metadata["tokenizer.ggml.token_type"][2047] == 5
    types = dict(zip(tokens, talker.metadata["tokenizer.ggml.token_type"], strict=True))
    assert [types[t] for t in ("!", "<think>", "<tts_pad>", "<|fim_pad|>", "<|codec_7|>")] == [1, 4, 3, 3, 3]
    assert set(talker.metadata["tts_cli.speaker_dialects"]) == {"eric=sichuan_dialect", "dylan=beijing_dialect"}
    for file in (talker, mmproj):
        assert file.metadata["general.name"] == "Qwen3-TTS-tiny"
        assert file.metadata["tts_cli.model_type"] == "custom_voice" and file.metadata["tts_cli.model_size"] == "1b7"


def test_dimensions_llama_cpp_leaves_out(folder, tmp_path):
    edit_json(folder / "speech_tokenizer" / "config.json", decoder_config__sliding_window=50)
    edit_json(folder / "generation_config.json", subtalker_top_k=20, subtalker_temperature=0.5, top_p=None)
    talker, mmproj = files(convert(folder, tmp_path / "out", "f16"))
    both = talker.metadata | mmproj.metadata
    ours = {key.removeprefix("tts_cli."): value for key, value in both.items() if key.startswith("tts_cli.")}
    assert ours == {
        "model_type": "base", "model_size": "1b7", "sampling.sub_temp": 0.5, "sampling.sub_top_k": 20,
        "sampling.sub_top_p": 1.0, "code_predictor.rope_theta": 1e6, "code2wav.block_count": 8,
        "code2wav.head_count": 16, "code2wav.head_count_kv": 16, "code2wav.window": 50,
        "code2wav.rms_epsilon": pytest.approx(1e-5), "code2wav.rope_theta": 1e4,
        "code2wav.upsample_rates": [8, 5, 4, 3], "code2wav.upsample_ratios": [2, 2], "code2wav.dilations": [1, 3, 9],
        "speaker_encoder.res2net_scale": 8, "speaker_encoder.dilations": [2, 3, 4], "codec_encoder.block_count": 2,
        "codec_encoder.head_count": 4, "codec_encoder.strides": [4, 5, 6, 8], "codec_encoder.rope_theta": 1e4,
        "codec_encoder.norm_epsilon": pytest.approx(1e-5)}
    assert "general.sampling.top_p" not in talker.metadata
    (folder / "generation_config.json").unlink()
    assert not [key for f in files(convert(folder, tmp_path / "out", "f16")) for key in f.metadata if "sampling" in key]


def test_shards_and_tokenizer_json(folder, tmp_path):
    expected = [p.read_bytes() for p in convert(folder, tmp_path / "one", "q8_0")]
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for part, members in parts.items():
        save_file({n: tensors[n] for n in members}, folder / part)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {n: part for part, members in parts.items() for n in members}}), encoding="utf-8")
    added = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))["added_tokens_decoder"]
    merges = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")[1:-1]
    tokenizer = {"model": {"vocab": json.loads((folder / "vocab.json").read_text(encoding="utf-8")),
                           "merges": [m.split(" ") for m in merges]},
                 "added_tokens": [{"id": int(i), **token} for i, token in added.items()]}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        (folder / name).unlink()
    assert [p.read_bytes() for p in convert(folder, tmp_path / "two", "q8_0")] == expected


def test_the_converted_pair_speaks(checkpoint, tmp_path):
    speech = load_engine(*convert(checkpoint, tmp_path, "q8_0")).speak(SpeechRequest("a b", seed=1, max_frames=3))
    assert sum(chunk.samples.size for chunk in speech) == speech.result.frames * 1920 > 0


def test_progress_counts_every_byte(checkpoint, tmp_path):
    heard = []
    paths = convert(checkpoint, tmp_path, "q8_0", progress=lambda *call: heard.append(call))
    done, totals, names = zip(*heard, strict=True)
    assert len(set(totals)) == 1 and done[-1] == totals[0] and list(done) == sorted(done)
    assert set(names) == {name for path in paths for name in File(path).types}
    assert 0 < sum(p.stat().st_size for p in paths) - totals[0] < 200_000
