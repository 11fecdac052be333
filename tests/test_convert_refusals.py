"""What conversion refuses, with which words, and that nothing half-written stays."""

import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import edit_json, edit_weights
from safetensors.torch import load_file

from tts_cli.errors import ModelFileError, TtsError, UsageError
from tts_cli.gguf.write import TYPES, OutputTensor, encode, write_gguf
from tts_cli.qwen3tts.convert import convert


@pytest.fixture
def folder(checkpoint, tmp_path):
    """A copy of the base checkpoint that a test may damage."""
    return Path(shutil.copytree(checkpoint, tmp_path / "tiny model é"))


def refusal(folder, out, kind=ModelFileError, type="f32") -> str:
    """Message of the one-line error `convert` raises; checks that nothing was left behind."""
    before = sorted(out.iterdir()) if out.is_dir() else None
    with pytest.raises(kind) as caught:
        convert(folder, out, type)
    assert caught.type is kind
    assert (sorted(out.iterdir()) if out.is_dir() else None) in (before, [] if before is None else before)
    message = str(caught.value)
    assert message and "\n" not in message
    return message


def test_unknown_type_lists_the_types(checkpoint, tmp_path):
    message = refusal(checkpoint, tmp_path, UsageError, type="q9_9")
    assert "'q9_9'" in message and "q8_0" in message and "bf16" in message


def test_folders_that_are_no_checkpoint(folder, tmp_path):
    out = tmp_path / "out"
    assert "is not a folder" in refusal(tmp_path / "absent", out, UsageError)
    edit_json(folder / "config.json", model_type="qwen3")
    assert "'qwen3'" in refusal(folder, out)
    shutil.rmtree(folder / "speech_tokenizer")
    assert "speech_tokenizer/config.json" in refusal(folder, out)
    (folder / "config.json").unlink()
    assert "no config.json" in refusal(folder, out, UsageError)
    assert not out.exists()


@pytest.mark.parametrize("file, changes, words", [
    ("config.json", dict(talker_config=None), "talker_config is missing"),
    ("config.json", dict(talker_config=[1]), "an object is expected"),
    ("config.json", dict(talker_config__hidden_size=None), "hidden_size is missing"),
    ("config.json", dict(talker_config__hidden_size="64"), "hidden_size must be"),
    ("config.json", dict(talker_config__hidden_size=True), "hidden_size must be"),
    ("config.json", dict(talker_config__num_hidden_layers=10**12), "num_hidden_layers must be"),
    ("config.json", dict(talker_config__rms_norm_eps=float("nan")), "rms_norm_eps must be"),
    ("config.json", dict(talker_config__hidden_act="mish"), "silu, gelu, relu"),
    ("config.json", dict(talker_config__codec_eos_token_id=4000), "codec_eos_token_id"),
    ("config.json", dict(talker_config__codec_pad_id=4000), "codec_pad_id"),
    ("config.json", dict(talker_config__spk_id={"ann": 4000}), "spk_id"),
    ("config.json", dict(talker_config__num_code_groups=1), "codebooks"),
    ("config.json", dict(tts_model_type="other"), "base, custom_voice, voice_design"),
    ("config.json", dict(speaker_encoder_config=None), "speaker_encoder_config is missing"),
    ("config.json", dict(speaker_encoder_config__enc_channels=[16, 16, 16, 16, 40]), "enc_channels"),
    ("config.json", dict(talker_config__rope_scaling=None), "rope_scaling is missing"),
    ("speech_tokenizer/config.json", dict(decoder_config__upsample_rates=[8, 0]), "upsample_rates must be"),
    ("generation_config.json", dict(temperature="hot"), "temperature must be"),
    ("generation_config.json", dict(temperature=1e308), "temperature must be"),
    ("generation_config.json", dict(top_k=10**400), "top_k must be"),
])
def test_damaged_configs_name_the_field(folder, tmp_path, file, changes, words):
    edit_json(folder / file, **changes)
    message = refusal(folder, tmp_path / "out")
    assert words in message and Path(file).name in message


def test_a_config_that_is_not_json(folder, tmp_path):
    (folder / "config.json").write_text("<html>", encoding="utf-8")
    assert "is not JSON" in refusal(folder, tmp_path / "out")


def test_tensors_that_do_not_match_are_listed(folder, tmp_path):
    def change(tensors):
        del tensors["talker.model.norm.weight"]
        tensors["talker.model.layers.1.self_attn.q_proj.bias"] = torch.zeros(4)
        tensors["talker.codec_head.weight"] = torch.zeros(3072, 32)

    edit_weights(folder / "model.safetensors", change)
    message = refusal(folder, tmp_path / "out")
    assert "1 missing: talker.model.norm.weight" in message
    assert "1 unknown: talker.model.layers.1.self_attn.q_proj.bias" in message
    assert "talker.codec_head.weight [3072, 32] instead of [3072, 64]" in message
    edit_json(folder / "config.json", talker_config__num_hidden_layers=2)
    assert "and 7 more" in refusal(folder, tmp_path / "out")


@pytest.mark.parametrize("cut", [0, 5, 1000, -1, -100_000])
def test_truncated_weights(folder, tmp_path, cut):
    path = folder / "speech_tokenizer" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:cut])
    assert "speech_tokenizer" in refusal(folder, tmp_path / "out")


def test_a_missing_shard(folder, tmp_path):
    names = list(load_file(folder / "model.safetensors"))
    index = {"weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    assert "model-00001-of-00001.safetensors" in refusal(folder, tmp_path / "out")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    assert convert(folder, tmp_path / "out", "f32")


def test_weights_that_are_something_else(folder, tmp_path):
    path = folder / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", encoding="utf-8")
    assert "download it again" in refusal(folder, tmp_path / "out")
    header = json.dumps({"x": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    assert "stored as I64" in refusal(folder, tmp_path / "out")


@pytest.mark.parametrize("name, change, words", [
    ("vocab.json", lambda p: edit_json(p, extra=9999), "outside"),
    ("vocab.json", lambda p: edit_json(p, extra=0), "share the id 0"),
    ("tokenizer_config.json", lambda p: p.write_text("{}", encoding="utf-8"), "<|im_start|>"),
    ("merges.txt", lambda p: p.write_text("#version: 0.2\na b c\n", encoding="utf-8"), "'a b c'"),
    ("merges.txt", lambda p: p.write_bytes(b"\xff\xfe a"), "merges.txt"),
    ("merges.txt", lambda p: p.unlink(), "no tokenizer"),
])
def test_damaged_tokenizers(folder, tmp_path, name, change, words):
    change(folder / name)
    assert words in refusal(folder, tmp_path / "out")


def test_numbers_that_cannot_be_stored(folder, tmp_path):
    def change(tensors):
        tensors["talker.model.layers.2.mlp.up_proj.weight"][0, 0] = 1e5

    edit_weights(folder / "model.safetensors", change)
    assert "blk.2.ffn_up.weight" in refusal(folder, tmp_path / "out", type="f16")
    assert convert(folder, tmp_path / "out", "bf16")
    rows = np.zeros((1, 32), np.float32)
    rows[0, 3] = np.nan
    with pytest.raises(ModelFileError, match="x.weight holds values that are not finite"):
        encode("x.weight", rows, TYPES["q8_0"])


def test_a_failure_half_way_leaves_the_old_files(folder, tmp_path):
    out = tmp_path / "out"
    paths = convert(folder, out, "f32")
    before = [p.read_bytes() for p in paths]

    def change(tensors):  # the second file's last part: found when everything else is written
        tensors["talker.code_predictor.small_to_mtp_projection.weight"][0, 0] = float("inf")

    edit_weights(folder / "model.safetensors", change)
    assert "a.gen.code.proj_in.weight" in refusal(folder, out)
    assert [p.read_bytes() for p in paths] == before and sorted(out.iterdir()) == sorted(paths)

    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(folder, out, "f32", progress=stop)
    assert [p.read_bytes() for p in paths] == before and sorted(out.iterdir()) == sorted(paths)


def test_outputs_that_cannot_be_written(checkpoint, tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("x", encoding="utf-8")
    assert "cannot write into" in refusal(checkpoint, file, UsageError)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 1000))
    assert "are needed" in refusal(checkpoint, tmp_path / "full", TtsError)


def test_rows_that_are_fewer_than_announced_are_a_programming_error(tmp_path):
    tensor = OutputTensor("x", (4, 32), TYPES["f32"], lambda: [np.zeros((3, 32), np.float32)])
    with pytest.raises(ValueError, match="384 bytes instead of the 512"):
        write_gguf(tmp_path / "x.gguf", "qwen3tts", [], [tensor])
