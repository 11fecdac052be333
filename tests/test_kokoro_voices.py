"""Voices by name, mix and file; damaged packs give one line."""

import io

import numpy as np
import pytest
import torch
from kokoro_folder import kokoro_folder, small_pack
from safetensors.numpy import save_file

from tts_cli.errors import ModelFileError, TtsError, UsageError
from tts_cli.kokoro.builtin import PACKS
from tts_cli.kokoro.voices import KokoroVoice, Voices, parse_mix
from tts_cli.loading import open_engine

SHAPE = (510, 32)


@pytest.fixture
def folder(tmp_path):
    return kokoro_folder(tmp_path / "model") / "voices"


@pytest.fixture
def voices(folder):
    return Voices([folder], SHAPE)


def rows(seed: int) -> np.ndarray:
    return small_pack(seed).reshape(SHAPE)


def test_names_come_from_the_folder(voices):
    assert voices.names == ["af_tiny", "bm_small"] and voices.default == "af_tiny"
    voice = voices.load("bm_small")
    assert voice.name == "bm_small" and voice.language == "b" and np.array_equal(voice.rows, rows(1))


def test_the_built_in_ones():
    voices = Voices([PACKS], (510, 256))
    assert voices.names == ["af_heart", "am_michael", "bf_emma", "bm_george"] and voices.default == "af_heart"
    packs = [voices.load(name).rows for name in voices.names]
    assert all(pack.dtype == np.float32 and 0.1 < pack.std() < 0.3 for pack in packs)
    assert packs[0][100, 0] == pytest.approx(-0.21727, abs=2e-4)


@pytest.mark.parametrize("given", ["af_nobody", "../af_tiny", "voices/af_tiny", "/etc/passwd", "af_tiny.pt", "AF_TINY"])
def test_an_unknown_name_gets_the_list(voices, given):
    with pytest.raises(UsageError, match="af_tiny, bm_small"):
        voices.load(given)


@pytest.mark.parametrize("spec, share", [
    ("af_tiny:0.7,bm_small:0.3", 0.7), ("af_tiny:7, bm_small:3", 0.7), ("af_tiny,bm_small", 0.5),
    (" bm_small : 1 , af_tiny : 4 ", 0.8), ("af_tiny,af_tiny,bm_small", 2 / 3), ("af_tiny:1e-3,bm_small:3e-3", 0.25),
])
def test_mixes(voices, spec, share):
    voice = voices.load(spec)
    assert np.allclose(voice.rows, share * rows(0) + (1 - share) * rows(1), atol=1e-6)
    assert voice.language == ("b" if spec.strip().startswith("bm") else "a")


def test_a_mix_of_one_is_that_voice(voices):
    assert np.array_equal(voices.load("af_tiny:0.2").rows, rows(0))


@pytest.mark.parametrize("spec", ["", ",", "af_tiny,", "af_tiny:", "af_tiny:x", "af_tiny:0", "af_tiny:-1",
                                  "af_tiny:nan", "af_tiny:inf", ":0.5", "af_tiny:0.5:2", "af_tiny:1e9"])
def test_mixes_that_are_not_written_so(spec):
    with pytest.raises(UsageError, match="NAME:0.7,NAME:0.3"):
        parse_mix(spec)


# ---- files ----------------------------------------------------------------------------------------------------------


def write(path, pack):
    if path.suffix == ".pt":
        torch.save(torch.from_numpy(pack), path)
    elif path.suffix == ".bin":
        path.write_bytes(pack.astype("<f4").tobytes())
    elif path.suffix == ".npz":
        np.savez(path, one=pack)
    elif path.suffix == ".npy":
        np.save(path, pack)
    else:
        save_file({"voice": pack}, path)
    return path


@pytest.mark.parametrize("suffix", [".pt", ".bin", ".npz", ".npy", ".safetensors"])
def test_every_container(voices, tmp_path, suffix):
    path = write(tmp_path / f"bf_mine{suffix}", small_pack(7))
    voice = voices.load_file(path)
    assert (voice.name, voice.language) == ("bf_mine", "b") and np.array_equal(voice.rows, rows(7))
    again = Voices([tmp_path], SHAPE)
    assert again.names == ["bf_mine"] and np.array_equal(again.load("bf_mine").rows, rows(7))


def test_an_archive_of_several_voices(folder, tmp_path):
    for name in ("voices-v1.0.npz", "voices-v1.0.bin"):
        archive = io.BytesIO()
        np.savez(archive, af_x=small_pack(3), af_y=small_pack(4))
        (tmp_path / name).write_bytes(archive.getvalue())
        voices = Voices([tmp_path], SHAPE)
        assert voices.names == ["af_x", "af_y"] and np.array_equal(voices.load("af_y").rows, rows(4))
        with pytest.raises(UsageError, match="2 voices"):
            voices.load_file(tmp_path / name)
        (tmp_path / name).unlink()


@pytest.mark.parametrize("suffix", [".pt", ".bin", ".npz", ".npy", ".safetensors"])
def test_packs_of_another_shape_or_without_numbers(voices, tmp_path, suffix):
    for pack in (small_pack()[:509], np.full_like(small_pack(), np.nan), np.zeros((510, 1, 32), np.int32)):
        if pack.dtype == np.int32 and suffix == ".bin":
            continue
        with pytest.raises(ModelFileError, match="af_bad"):
            voices.load_file(write(tmp_path / f"af_bad{suffix}", pack))


@pytest.mark.parametrize("suffix", [".pt", ".bin", ".npz", ".npy", ".safetensors"])
def test_damaged_packs_give_one_line(voices, tmp_path, suffix):
    path = write(tmp_path / f"af_bad{suffix}", small_pack())
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    damaged = [b"", b"x", b"PK\x03\x04", b"\x93NUMPY\x01\0", *(whole[:size] for size in (8, 100, 5000, len(whole) - 1))]
    for _ in range(60):
        changed = bytearray(whole)
        for at in [*random.integers(0, 700, 3), *random.integers(len(whole) - 700, len(whole), 3)]:
            changed[at] = random.integers(256)
        damaged.append(bytes(changed))
    for raw in damaged:
        path.write_bytes(raw)
        for load in (lambda: voices.load_file(path), lambda: Voices([tmp_path], SHAPE).load("af_bad")):
            try:
                load()
            except TtsError as error:
                assert "\n" not in str(error)


def test_files_that_are_none(voices, tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        voices.load_file(tmp_path / "none.pt")
    (tmp_path / "voice.txt").write_bytes(b"x")
    with pytest.raises(UsageError, match=".safetensors"):
        voices.load_file(tmp_path / "voice.txt")
    torch.save({"a": torch.zeros(3)}, tmp_path / "voice.pt")
    with pytest.raises(ModelFileError, match="voice.pt"):
        voices.load_file(tmp_path / "voice.pt")


def test_other_files_in_the_folder_are_passed_over(folder):
    (folder / "notes.txt").write_text("x", encoding="utf-8")
    (folder / "af_folder.pt").mkdir()
    (folder / "with,comma.bin").write_bytes(b"x")
    assert Voices([folder, folder / "absent"], SHAPE).names == ["af_tiny", "bm_small"]


def test_a_checkpoint_without_voices_gets_the_shipped_ones(tmp_path):
    engine = open_engine(kokoro_folder(tmp_path, voices=()))
    assert "af_heart" in engine.voice_names


@pytest.mark.parametrize("name, language", [("jf_alpha", "j"), ("zm_yunxi", "z"), ("my_voice", "a"), ("grandma", "a")])
def test_the_first_letter_is_the_language(name, language):
    assert KokoroVoice(name, np.zeros((1, 2), np.float32)).language == language
