"""Loading Kokoro checkpoints: what is taken, and that a damaged file gives one line, never another exception."""

import json
import os
import pickle
import zipfile

import numpy as np
import pytest
import torch
from kokoro_folder import RAW, kokoro_folder, small_config, small_state
from safetensors.torch import save_file

from tts_cli.errors import ModelFileError, TtsError, UsageError
from tts_cli.kokoro.weights import find_weights, is_checkpoint, load_checkpoint, read_config
from tts_cli.loading import open_engine


@pytest.fixture(scope="module")
def config():
    return small_config()


@pytest.fixture(scope="module")
def state(config):
    return small_state(config)


def same(model, state) -> bool:
    loaded = model.state_dict()
    return loaded.keys() == state.keys() and all(torch.equal(loaded[name], state[name]) for name in state)


def nested(state, prefix="module."):
    parts = {}
    for name, tensor in state.items():
        part, _, rest = name.partition(".")
        parts.setdefault(part, {})[prefix + rest] = tensor
    return parts


@pytest.mark.parametrize("arranged", [
    lambda state: state, nested, lambda state: {"model." + name: tensor for name, tensor in state.items()},
    lambda state: {"net": nested(state, "")},
], ids=["flat", "nested with module.", "one prefix", "nested twice"])
def test_arrangements_of_a_pytorch_file(tmp_path, config, state, arranged):
    torch.save(arranged(state), tmp_path / "m.pth")
    assert same(load_checkpoint(tmp_path / "m.pth", config), state)


def test_safetensors_flat_and_prefixed(tmp_path, config, state):
    for prefix in ("", "kokoro."):
        save_file({prefix + name: tensor for name, tensor in state.items()}, tmp_path / "m.safetensors")
        assert same(load_checkpoint(tmp_path / "m.safetensors", config), state)


def test_half_precision_becomes_float32(tmp_path, config, state):
    save_file({name: tensor.half() for name, tensor in state.items()}, tmp_path / "m.safetensors")
    loaded = load_checkpoint(tmp_path / "m.safetensors", config).state_dict()
    assert all(tensor.dtype == torch.float32 for tensor in loaded.values())
    assert torch.equal(loaded["bert.words.weight"], state["bert.words.weight"].half().float())


def test_what_is_missing_extra_or_misshapen_is_listed(tmp_path, config, state):
    changed = dict(state)
    del changed["bert.words.weight"]
    changed["decoder.surplus"] = torch.zeros(1)
    changed["bert_projection.bias"] = torch.zeros(3)
    torch.save(changed, tmp_path / "m.pth")
    with pytest.raises(ModelFileError) as error:
        load_checkpoint(tmp_path / "m.pth", config)
    for part in ("missing 1: bert.words.weight", "not known 1: decoder.surplus",
                 "misshapen 1: bert_projection.bias (3,) instead of (32,)", "m.pth"):
        assert part in str(error.value)


def test_quantised_copies_for_mlx_are_named(tmp_path, config, state):
    save_file({**state, "bert_projection.scales": torch.zeros(1)}, tmp_path / "m.safetensors")
    with pytest.raises(ModelFileError, match="MLX.*hexgrad/Kokoro-82M"):
        load_checkpoint(tmp_path / "m.safetensors", config)


class Command:
    def __reduce__(self):
        return os.system, ("echo harm",)


@pytest.mark.parametrize("content", [
    [torch.zeros(2)], {"bert": [1, 2]}, {"bert": "text"}, torch.zeros(3), {"a": {"b": {"c": {"d": {"e": 1}}}}}, {},
    {"bert": torch.zeros(2).to_sparse()}, {1: torch.zeros(2)}, Command(), np.zeros(3),
], ids=["list", "list inside", "text", "tensor", "deep", "empty", "sparse", "number", "command", "array"])
def test_other_pickles_are_refused(tmp_path, config, content, capfd):
    torch.save(content, tmp_path / "m.pth")
    with pytest.raises(ModelFileError, match="m.pth"):
        load_checkpoint(tmp_path / "m.pth", config)
    assert "harm" not in capfd.readouterr().out


def test_old_and_foreign_formats_are_refused(tmp_path, config, state):
    path = tmp_path / "m.pth"
    torch.save(state, path, _use_new_zipfile_serialization=False)
    with pytest.raises(ModelFileError, match="PyTorch"):
        load_checkpoint(path, config)
    for raw in (b"x", b"PK\x03\x04", pickle.dumps(Command()), b"\x80\x02c" + b"a" * 40, b"\0" * 4096):
        path.write_bytes(raw)
        with pytest.raises(ModelFileError, match="PyTorch"):
            load_checkpoint(path, config)
    path.write_bytes(b"")
    with pytest.raises(ModelFileError, match="empty"):
        load_checkpoint(path, config)
    with pytest.raises(UsageError):
        load_checkpoint(tmp_path / "none.pth", config)
    with pytest.raises(UsageError):
        load_checkpoint(tmp_path, config)


def test_a_compressed_archive_is_refused(tmp_path, config, state):
    torch.save(state, tmp_path / "plain.pth")
    with (zipfile.ZipFile(tmp_path / "plain.pth") as source,
          zipfile.ZipFile(tmp_path / "m.pth", "w", zipfile.ZIP_DEFLATED) as target):
        for entry in source.infolist():
            target.writestr(entry.filename, source.read(entry))
    with pytest.raises(ModelFileError, match="compressed"):
        load_checkpoint(tmp_path / "m.pth", config)


@pytest.mark.parametrize("kind", ["pth", "safetensors"])
def test_damaged_files_load_or_give_one_line(tmp_path, config, state, kind):
    """Cut short, and with bytes changed in the parts that describe the tensors."""
    path = find_weights(kokoro_folder(tmp_path, kind=kind, state=state))
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    described = [*range(400), *range(len(whole) - 12000, len(whole))] if kind == "pth" else range(12000)
    damaged = [whole[:size] for size in (1, 7, 8, 100, len(whole) // 2, len(whole) - 1)]
    for _ in range(120):
        changed = bytearray(whole)
        for at in random.choice(described, random.integers(1, 6)):
            changed[at] = random.integers(256)
        damaged.append(bytes(changed))
    refused = 0
    for raw in damaged:
        path.write_bytes(raw)
        try:
            load_checkpoint(path, config)
        except ModelFileError as error:
            refused += 1
            assert "\n" not in str(error) and len(str(error)) < 1200
    assert refused > 20


def test_a_size_larger_than_the_file_is_refused(tmp_path, config):
    header = json.dumps({"bert.words.weight": {"dtype": "F32", "shape": [2**40, 2**20], "data_offsets": [0, 2**62]}})
    for length in (len(header), 2**63, 2**40):
        path = tmp_path / "m.safetensors"
        path.write_bytes(length.to_bytes(8, "little") + header.encode())
        with pytest.raises(ModelFileError, match="safetensors"):
            load_checkpoint(path, config)


# ---- folders --------------------------------------------------------------------------------------------------------


def test_the_istftnet_block_or_the_name_tells_a_checkpoint(tmp_path):
    assert not is_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    assert not is_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(RAW), encoding="utf-8")
    assert is_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{broken", encoding="utf-8")
    assert not is_checkpoint(tmp_path)
    (tmp_path / "kokoro-v1_0.pth").write_bytes(b"x")
    assert is_checkpoint(tmp_path)


def test_a_model_type_beside_the_block_changes_nothing(tmp_path):
    kokoro_folder(tmp_path, model_type="qwen3_tts")
    assert open_engine(tmp_path).config == small_config()


def test_folder_or_file_in_it(tmp_path):
    folder = kokoro_folder(tmp_path / "mit Ümlaut and spaces")
    for given in (folder, str(folder), folder / "kokoro-v1_0.safetensors", folder / "config.json"):
        assert open_engine(given).weights == folder / "kokoro-v1_0.safetensors"
    with pytest.raises(UsageError, match="mmproj"):
        open_engine(folder, "mmproj.gguf")


def test_which_file_of_weights(tmp_path):
    kokoro_folder(tmp_path)
    (tmp_path / "kokoro-v1_0.safetensors").rename(tmp_path / "other.safetensors")
    assert find_weights(tmp_path).name == "other.safetensors"
    (tmp_path / "second.pth").write_bytes(b"x")
    with pytest.raises(UsageError, match="other.safetensors, second.pth"):
        find_weights(tmp_path)
    for path in (tmp_path / "other.safetensors", tmp_path / "second.pth"):
        path.unlink()
    with pytest.raises(UsageError, match="no file of weights"):
        open_engine(tmp_path)


def test_a_folder_of_something_else(tmp_path):
    with pytest.raises(UsageError, match="tts convert"):
        open_engine(tmp_path)
    with pytest.raises(UsageError, match="no such file"):
        open_engine(tmp_path / "absent")


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xfe", b"[" * 100_000, b'{"istftnet": 3}',
                                     b" " * (5 << 20)])
def test_config_files_that_are_none(tmp_path, content):
    kokoro_folder(tmp_path)
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelFileError, match="config.json"):
        open_engine(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(TtsError, match="config.json"):
        read_config(tmp_path)
