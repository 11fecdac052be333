"""Opening GGUF files, their metadata, and every tensor type gguf can dequantise."""

import os
import struct
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from factory import tiny_pair
from gguf import GGMLQuantizationType as Q

from tts_cli import ModelFileError, UsageError
from tts_cli.gguf import file as file_module
from tts_cli.gguf.file import GGUFFile
from tts_cli.gguf.header import can_dequantise

READABLE = [kind for kind in Q if can_dequantise(kind)]
# Largest error of a round trip, relative to the largest value, for the types gguf can also write.
ROUND_TRIP = {Q.F32: 0, Q.F16: 1e-3, Q.BF16: 4e-3, Q.Q8_0: 5e-3, Q.Q5_0: 0.07, Q.Q5_1: 0.05, Q.Q4_0: 0.13, Q.Q4_1: 0.08,
              Q.MXFP4: 0.2, Q.TQ1_0: 0.5, Q.TQ2_0: 0.5}
VALUES = np.random.RandomState(5).standard_normal((2, 12, 512)).astype(np.float32)


def write(path: Path, tensors: dict, **metadata) -> Path:
    """A GGUF of `tensors`: name -> float array, or (bytes array, type)."""
    writer = gguf.GGUFWriter(path, "test")
    for key, value in metadata.items():
        {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, bool: writer.add_bool,
         list: writer.add_array}[type(value)](key, value)
    for name, x in tensors.items():
        raw, kind = x if isinstance(x, tuple) else (x, None)
        writer.add_tensor(name, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def raw_header(tensors: bytes = b"", count: int = 0, keys: bytes = b"", key_count: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, count, key_count) + keys + tensors


def text(value: str | bytes) -> bytes:
    value = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(value)) + value


def tensor_entry(name="t", shape=(32,), kind=0, offset=0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def refused(tmp_path: Path, content: bytes) -> str:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFileError) as e:
        GGUFFile.open(path)
    message = str(e.value)
    assert message.startswith(f"{path}: ") and "\n" not in message
    return message.removeprefix(f"{path}: ")


# ---- opening

def test_a_tiny_pair_opens(pair):
    with GGUFFile.open(pair[0]) as talker, GGUFFile.open(str(pair[1])) as mmproj:
        assert (talker.architecture, mmproj.architecture) == ("qwen3tts", "clip")
        assert talker.version == 3
        assert (len(talker.tensors), len(mmproj.tensors)) == (36, 345)
        info = talker.tensor("token_embd.weight", (None, 64))
        assert (info.shape, info.type, info.nbytes) == ((5120, 64), Q.F32, 5120 * 64 * 4)
        assert mmproj.tensor("a.gen.code.embd.weight").shape == (15, 2048, 64)
        assert mmproj.tensor("a.gen.wav.dac.blk.0.conv.weight").shape == (64, 32, 16)


def test_awkward_names(tmp_path, pair):
    path = tmp_path / "ein Modell – 模型 'x'.gguf"
    path.write_bytes(pair[0].read_bytes())
    with GGUFFile.open(path) as file:
        assert file.architecture == "qwen3tts"


def test_what_is_no_file_is_a_usage_error(tmp_path):
    for path, message in [(tmp_path / "no.gguf", "no such file"), (tmp_path, "is a folder"), ("a\0b", "cannot be read"),
                          (tmp_path / ("x" * 300), "cannot be read"), (Path(os.devnull), "not a regular file")]:
        with pytest.raises(UsageError, match=message) as e:
            GGUFFile.open(path)
        assert e.value.exit_code == 2


@pytest.mark.parametrize(("content", "message"), [
    (b"", "the file is empty"),
    (b"<!DOCTYPE html><html>", "not a GGUF file (starts with b'<!DO'); it is a web page"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "starts with b'vers'); it is a Git LFS pointer"),
    (struct.pack("<Q", 40) + b'{"a":{"dtype":"F32"}}', "it looks like a safetensors file"),
    (b"just some text", "not a GGUF file (starts with b'just')"),
    (b"GG", "not a GGUF file (starts with b'GG')"),
    (b"GGUF", "the version runs past the end of the file"),
    (b"GGUF\x03\0\0\0", "the tensor count runs past"),
    (raw_header(version=1), "GGUF version 1 is not supported"),
    (raw_header(version=0), "GGUF version 0 is not supported"),
    (raw_header(version=4), "GGUF version 4 is not supported"),
    (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "a big-endian GGUF file"),
    (raw_header(count=2**63), "the tensor count (9223372036854775808) runs past"),
    (raw_header(key_count=2**40), "the number of metadata keys (1099511627776) runs past"),
    (raw_header(keys=text(b"k\xff") + b"\0" * 8, key_count=1), "not UTF-8"),
    (raw_header(keys=struct.pack("<Q", 2**63) + b"\0" * 20, key_count=1), "too long for the file"),
    (raw_header(keys=text("k") + struct.pack("<I", 99) + b"\0" * 8, key_count=1), "unknown value type 99"),
    (raw_header(keys=text("k") + struct.pack("<I", 8) + text(b"\xff\xfe"), key_count=1), "'k' holds text that is not"),
    (raw_header(keys=text("k") + struct.pack("<IIQ", 9, 8, 2**60), key_count=1), "'k' (1152921504606846976) runs past"),
    (raw_header(keys=text("k") + struct.pack("<IIQ", 9, 4, 2**60), key_count=1), "'k' (1152921504606846976) runs past"),
    (raw_header(keys=text("k") + struct.pack("<IIQ", 9, 9, 1) + b"\0" * 30, key_count=1), "an array of arrays"),
    (raw_header(keys=2 * (text("key") + struct.pack("<II", 4, 7)), key_count=2), "'key' is there twice"),
    (raw_header(keys=text("general.alignment") + struct.pack("<II", 4, 24), key_count=1), "general.alignment is 24"),
    (raw_header(keys=text("general.alignment") + struct.pack("<II", 4, 0), key_count=1), "general.alignment is 0"),
    (raw_header(keys=text("general.alignment") + struct.pack("<If", 6, 32), key_count=1), "general.alignment is 32.0"),
])
def test_other_files_and_damaged_headers(tmp_path, content, message):
    assert message in refused(tmp_path, content)


@pytest.mark.parametrize(("entry", "message"), [
    (dict(shape=()), "'t' has 0 dimensions"),
    (dict(shape=(1,) * 5), "'t' has 5 dimensions"),
    (dict(shape=(32, 0)), "'t' has the empty shape [0, 32]"),
    (dict(shape=(2**63, 2**63)), "'t' ends at byte"),
    (dict(shape=(33,), kind=8), "'t' has rows of 33 values, not a multiple of 32 as Q8_0 needs"),
    (dict(kind=4), "'t' has the type number 4"),
    (dict(kind=4096), "'t' has the type number 4096"),
    (dict(kind=26), "'t' has the type I32"),
    (dict(offset=8), "'t' starts at a byte that is not a multiple of 32"),
    (dict(offset=2**63), "'t' ends at byte"),
    (dict(shape=(1024,)), "'t' ends at byte 4160, but the file has 256 bytes"),
])
def test_damaged_tensor_entries(tmp_path, entry, message):
    head = raw_header(tensor_entry(**entry), count=1)
    assert message in refused(tmp_path, head + b"\0" * (256 - len(head)))


def test_tensors_must_be_distinct(tmp_path):
    twice = raw_header(tensor_entry() + tensor_entry(offset=128), count=2)
    assert "'t' is there twice" in refused(tmp_path, twice + b"\0" * 400)
    overlapping = raw_header(tensor_entry("a") + tensor_entry("b", offset=96), count=2)
    assert "'a' and 'b' overlap" in refused(tmp_path, overlapping + b"\0" * 400)


def test_a_cut_file_names_the_tensor(tmp_path, pair):
    content = pair[0].read_bytes()
    with GGUFFile.open(pair[0]) as file:
        last = max(file.tensors.values(), key=lambda t: t.offset)
    cut = content[:last.offset + last.nbytes - 1]
    assert f"tensor {last.name!r} ends at byte {len(cut) + 1}, but the file has {len(cut)}" in refused(tmp_path, cut)


def test_version_2_and_another_alignment(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "test")
    writer.add_custom_alignment(256)
    writer.add_tensor("a", np.arange(3, dtype=np.float32))
    writer.add_tensor("b", np.arange(5, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    content = bytearray((tmp_path / "x.gguf").read_bytes())
    content[4] = 2
    (tmp_path / "x.gguf").write_bytes(content)
    with GGUFFile.open(tmp_path / "x.gguf") as file:
        assert file.version == 2 and file.tensor("b").offset % 256 == 0
        assert file.rows("b", [0]).tolist() == [[0, 1, 2, 3, 4]]


# ---- metadata

@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    path = write(tmp_path_factory.mktemp("keys") / "k.gguf", {}, i=7, f=0.5, nan=float("nan"), s="text", b=True,
                 ints=[1, 2, 3], floats=[0.5, 2.0], bools=[True, False], strings=["a", "ü"])
    with GGUFFile.open(path) as file:
        yield file


@pytest.mark.parametrize(("key", "kind", "value"), [
    ("i", int, 7), ("i", float, 7.0), ("f", float, 0.5), ("s", str, "text"), ("b", bool, True),
    ("ints", list, [1, 2, 3]), ("ints", list[int], [1, 2, 3]),
    ("floats", list[float], [0.5, 2.0]), ("ints", list[float], [1.0, 2.0, 3.0]),
    ("bools", list[bool], [True, False]), ("strings", list[str], ["a", "ü"])])
def test_typed_metadata(keys, key, kind, value):
    found = keys.get(key, kind)
    assert found == value and type(found) is type(value)
    if isinstance(value, list):
        assert [type(x) for x in found] == [type(x) for x in value]


@pytest.mark.parametrize(("key", "kind"), [
    ("i", str), ("i", bool), ("f", int), ("nan", float), ("b", int), ("b", float), ("s", int), ("i", list),
    ("ints", int), ("strings", list[int]), ("floats", list[int]), ("bools", list[int]), ("ints", list[str])])
def test_metadata_of_another_kind_is_refused(keys, key, kind):
    with pytest.raises(ModelFileError, match=f"k.gguf: the metadata key '{key}' is "):
        keys.get(key, kind)


def test_missing_metadata(keys):
    assert keys.get("no", int, 3) == 3 and keys.get("no", str, None) is None
    with pytest.raises(ModelFileError, match="k.gguf: the metadata key 'no' is missing"):
        keys.get("no", int)


def test_missing_and_misshapen_tensors(pair):
    with GGUFFile.open(pair[0]) as file:
        with pytest.raises(ModelFileError, match="the tensor 'no.weight' is missing"):
            file.tensor("no.weight")
        with pytest.raises(ModelFileError, match=r"has the shape \[5120, 64\], not \[any, 128\]"):
            file.tensor("token_embd.weight", (None, 128))
        with pytest.raises(ModelFileError, match=r"not \[64\]"):
            file.tensor("token_embd.weight", (64,))


# ---- tensors

def stored(kind: Q) -> np.ndarray:
    """Bytes [2, 12, row bytes] of `kind`: VALUES quantised where gguf can, random blocks otherwise."""
    if kind in ROUND_TRIP:
        return gguf.quants.quantize(VALUES, kind)
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    return np.random.RandomState(kind).randint(0, 256, (2, 12, 512 // block * block_bytes), dtype=np.uint8)


@pytest.mark.parametrize("kind", READABLE, ids=lambda k: k.name)
def test_every_type_gguf_can_dequantise(tmp_path, monkeypatch, kind):
    raw = stored(kind)
    with np.errstate(all="ignore"):
        want = gguf.quants.dequantize(raw.view(np.uint8) if kind == Q.BF16 else raw, kind).reshape(24, 512)
    if kind in ROUND_TRIP:
        error = np.abs(want - VALUES.reshape(24, 512)).max() / np.abs(VALUES).max()
        assert error <= ROUND_TRIP[kind]
    monkeypatch.setattr(file_module, "BLOCK_ELEMENTS", 768)  # blocks that end inside rows
    with GGUFFile.open(write(tmp_path / "x.gguf", {"a": np.ones(1, np.float32), "t": (raw, kind)})) as file:
        assert file.tensor("t").shape == (2, 12, 512) and file.tensor("t").type == kind
        out = torch.full((2, 12, 512), 7.0)
        file.read_into("t", out)
        np.testing.assert_array_equal(out.numpy().reshape(24, 512), want)
        np.testing.assert_array_equal(file.rows("t", slice(None)), want)
        np.testing.assert_array_equal(file.rows("t", [23, 0, 12, 12]), want[[23, 0, 12, 12]])
        np.testing.assert_array_equal(file.rows("t", slice(20, 2, -5)), want[20:2:-5])


def test_the_usual_types_are_readable():
    names = {kind.name for kind in READABLE}
    assert names >= {"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K",
                     "Q6_K", "IQ4_NL", "IQ4_XS", "IQ3_S", "IQ2_XXS", "IQ1_S", "MXFP4"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", [Q.F32, Q.F16, Q.BF16, Q.Q8_0], ids=lambda k: k.name)
def test_read_into_converts_to_the_dtype_of_out(tmp_path, kind, dtype):
    raw = stored(kind)
    with GGUFFile.open(write(tmp_path / "x.gguf", {"t": (raw, kind)})) as file:
        out = torch.empty(24, 512, dtype=dtype)
        file.read_into("t", out)
        exact = torch.from_numpy(file.rows("t", slice(None)))
        assert torch.equal(out, exact.to(dtype))


def test_read_into_accepts_parameters_and_refuses_other_tensors(tmp_path):
    with GGUFFile.open(write(tmp_path / "x.gguf", {"t": VALUES})) as file:
        parameter = torch.nn.Parameter(torch.zeros(24, 512))
        file.read_into("t", parameter)
        assert np.array_equal(parameter.detach().numpy(), VALUES.reshape(24, 512))
        for bad in (torch.empty(3), torch.empty(512, 24).t(), torch.empty(24, 512, dtype=torch.int32)):
            with pytest.raises(ValueError, match="needs a contiguous floating-point tensor of 12288"):
                file.read_into("t", bad)


def test_rows_outside_the_tensor(tmp_path):
    with GGUFFile.open(write(tmp_path / "x.gguf", {"t": VALUES, "v": VALUES[0, 0]})) as file:
        for index in ([24], [-1], [0, 2**40]):
            with pytest.raises(IndexError, match="of 't', which has 24"):
                file.rows("t", index)
        assert file.rows("t", []).shape == (0, 512) and file.rows("t", slice(5, 5)).shape == (0, 512)
        assert file.rows("v", [0]).shape == (1, 512)
        with pytest.raises(ModelFileError, match="missing"):
            file.rows("no", [0])


def test_rows_touch_nothing_else(tmp_path, monkeypatch):
    seen = []
    real = gguf.quants.dequantize
    monkeypatch.setattr(gguf.quants, "dequantize", lambda raw, kind: seen.append(raw.shape) or real(raw, kind))
    with GGUFFile.open(write(tmp_path / "x.gguf", {"t": (stored(Q.Q8_0), Q.Q8_0)})) as file:
        seen.clear()
        file.rows("t", [1, 20])
    assert seen == [(2, 512 // 32 * 34)]


def test_close_lets_go_of_the_file(pair, tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(pair[0].read_bytes())
    file = GGUFFile.open(path)
    kept = file.rows("token_embd.weight", [0])
    file.close()
    path.unlink()
    assert np.isfinite(kept).all() and file.metadata["tokenizer.ggml.pre"] == "qwen2"
    with pytest.raises(ValueError):
        file.rows("token_embd.weight", [0])


PEAK = """
import sys, torch
from tts_cli.gguf.file import GGUFFile
def resident():
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM")) // 1024
with GGUFFile.open(sys.argv[1]) as file:
    out = torch.zeros(1024, 1024)
    file.read_into("t0", out)  # the first call's own buffers
    before = resident()
    for name in file.tensors:
        file.read_into(name, out)
    print(resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's record of peak memory")
@pytest.mark.parametrize("kind", [Q.F32, Q.Q8_0], ids=lambda k: k.name)
def test_reading_a_large_file_does_not_keep_it_in_memory(tmp_path, kind):
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    raw = np.zeros((1024, 1024 // block * block_bytes), np.uint8)
    count = 160 * 2**20 // raw.nbytes
    path = write(tmp_path / "big.gguf", {f"t{i}": (raw, kind) for i in range(count)})
    assert path.stat().st_size > 150 * 2**20
    run = subprocess.run([sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, check=True,
                         env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)})
    assert int(run.stdout) < 40


# ---- the factory itself

def test_the_factory_is_reproducible_and_its_seed_matters(tmp_path, pair):
    again = tiny_pair(tmp_path / "again")
    assert [p.read_bytes() for p in again] == [p.read_bytes() for p in pair]
    other = tiny_pair(tmp_path / "other", seed=1)
    assert other[1].read_bytes() != pair[1].read_bytes()


@pytest.mark.parametrize("variant", ["custom_voice", "voice_design"])
@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_the_factory_s_variants(tmp_path, variant, kind):
    talker, mmproj = tiny_pair(tmp_path, variant=variant, type=kind, equal=True)
    with GGUFFile.open(talker) as t, GGUFFile.open(mmproj) as m:
        assert t.get("tts_cli.model_type", str) == variant
        assert ("<|spk_ryan|>" in t.metadata["tokenizer.ggml.tokens"]) == (variant == "custom_voice")
        assert not any(name.startswith(("a.blk", "mm.", "a.gen.code.proj_in")) for name in m.tensors)
        assert t.tensor("token_embd.weight").type == {"f16": Q.F16, "q8_0": Q.Q8_0}[kind]
        assert m.tensor("a.gen.wav.pre_conv.weight").type == Q.F16
        assert m.tensor("a.gen.code.blk.0.ffn_down.weight").type == Q.F32
