"""Saved voices: one small file each, refused when it does not fit, the same bytes as the clip it was made from."""

import json

import numpy as np
import pytest
from clips import speech_like
from factory import tiny_pair
from safetensors.numpy import load_file, save_file

from tts_cli import voice_store
from tts_cli.engine import SpeechRequest
from tts_cli.errors import UsageError
from tts_cli.loading import load_engine, open_engine
from tts_cli.qwen3tts.convert import convert
from tts_cli.voices import Voice, load_voice, save_voice

CLIP = speech_like(48000)


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture(scope="module")
def engine(checkpoint, tmp_path_factory):
    return load_engine(*convert(checkpoint, tmp_path_factory.mktemp("model"), "f32"), device="cpu", dtype="float32")


def spoken(engine, voice):
    request = SpeechRequest("Hello world.", voice=voice, seed=3, max_frames=6)
    return np.concatenate([chunk.samples for chunk in engine.speak(request)]).tobytes()


@pytest.mark.parametrize("ref_text", [None, "What the clip says."])
def test_a_saved_voice_speaks_the_bytes_of_its_clip(engine, ref_text):
    voice = engine.voice_from_clip(CLIP, "anna", ref_text)
    voice_store.save(voice, source="clip.wav")
    saved = voice_store.load("anna")
    assert spoken(engine, saved) == spoken(engine, voice) != spoken(engine, None)
    assert (saved.ref_text, saved.codes is None) == (ref_text, ref_text is None)
    about = voice_store.about("anna")
    assert about["source"] == "clip.wav" and about["model"] == engine.pair.name and "created" in about


def test_a_voice_fits_other_quantisations_of_its_model_and_no_other_model(engine, checkpoint, tmp_path):
    voice = engine.voice_from_clip(CLIP, "anna")
    smaller = open_engine(*convert(checkpoint, tmp_path, "q8_0"), device="cpu")
    smaller.check(SpeechRequest("Hello.", voice=voice))
    other = open_engine(*tiny_pair(tmp_path / "other", seed=5), device="cpu")
    told = f"'anna' was made with the model '{engine.pair.name}', this is '.*fingerprint"
    with pytest.raises(UsageError, match=told):
        other.check(SpeechRequest("Hello.", voice=voice))


def test_list_rename_remove_export_and_import(tmp_path):
    assert voice_store.names() == []
    for name in ("ben", "änna 2"):
        voice_store.save(Voice(name, np.ones(4, np.float32)))
    assert voice_store.names() == ["ben", "änna 2"]
    voice_store.rename("ben", "bob")
    with pytest.raises(UsageError, match="already"):
        voice_store.rename("bob", "änna 2")
    assert voice_store.load("bob").name == "bob"
    copy = tmp_path / "bob.safetensors"
    copy.write_bytes(voice_store.path_of("bob").read_bytes())
    voice_store.remove("bob")
    with pytest.raises(UsageError, match="no saved voice 'bob'; saved are änna 2"):
        voice_store.load("bob")
    assert voice_store.add(copy) == "bob" and voice_store.add(copy, "robert") == "robert"
    with pytest.raises(UsageError, match="already"):
        voice_store.add(copy)
    assert voice_store.load(str(copy)).xvector.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a\\b", " a", "a ", "a.", "-x", "a:b", "a,b", "x" * 65,
                                  "a\nb"])
def test_names_are_no_paths(name):
    with pytest.raises(UsageError, match="voice name"):
        voice_store.path_of(name, new=True)


def test_mixes_are_weighted_means(engine):
    voice_store.save(Voice("a", np.array([1, 0], np.float32)))
    voice_store.save(Voice("b", np.array([0, 1], np.float32)))
    assert voice_store.load("a:3,b:1").xvector.tolist() == [0.75, 0.25]
    assert voice_store.load("a,b").xvector.tolist() == [0.5, 0.5]
    for bad in ("a:0,b:1", "a:x", "a:-1,b:2", ":1", "a:nan,b:1", "a:1,,b:1"):
        with pytest.raises(UsageError):
            voice_store.load(bad)
    voice_store.save(Voice("wide", np.ones(3, np.float32)))
    with pytest.raises(UsageError, match="different widths"):
        voice_store.load("a:1,wide:1")


def test_damaged_voice_files_are_refused(tmp_path):
    path = tmp_path / "v.safetensors"
    save_voice(Voice("v", np.ones(4, np.float32), np.zeros((3, 16), np.int32), "text"), path)
    whole, tensors = path.read_bytes(), load_file(path)
    about = {"tts_cli.voice": json.dumps({"version": 1, "name": "v"})}
    for damaged in (b"", whole[:10], whole[:-8], b"\xff" * 100, b"not a voice"):
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match="not a voice file"):
            load_voice(path)
    for change, metadata, message in (
            ({}, {}, "no voice"), ({}, {"tts_cli.voice": "[]"}, "no voice"),
            ({}, {"tts_cli.voice": "{"}, "not a voice"),
            ({}, {"tts_cli.voice": '{"version": 2}'}, "version 2"), ({}, about, "go together"),
            ({"xvector": np.full(4, np.nan, np.float32)}, about, "xvector"),
            ({"xvector": np.ones((2, 2), np.float32)}, about, "xvector"), ({"extra": np.ones(1)}, about, "extra")):
        save_file(tensors | change, path, metadata)
        with pytest.raises(UsageError, match=message):
            load_voice(path)
    with pytest.raises(UsageError, match="no such file"):
        load_voice(tmp_path / "absent.safetensors")


def test_a_clip_with_transcript_needs_a_file_with_the_encoder(pair):
    engine = open_engine(*pair, device="cpu")
    with pytest.raises(UsageError, match="no codec encoder.*tts convert"):
        engine.voice_from_clip(CLIP, "anna", "What it says.")
    assert engine.models is None  # refused before any weight was read


@pytest.mark.parametrize("text_mode", ["full", "streaming"])
@pytest.mark.parametrize("ref_text", [None, "What the clip says."])
def test_a_voice_that_was_read_before_is_not_read_again(engine, text_mode, ref_text):
    voice = engine.voice_from_clip(CLIP, "anna", ref_text)
    engine._prefixes.clear()
    read, talker = [], engine.models.talker
    talker.read = lambda rows: read.append(len(rows)) or type(talker).read(talker, rows)
    try:
        takes = []
        for text in ("Hello world.", "Something else.", "Hello world."):
            request = SpeechRequest(text, voice=voice, seed=3, max_frames=6, text_mode=text_mode)
            takes.append(np.concatenate([chunk.samples for chunk in engine.speak(request)]).tobytes())
    finally:
        del talker.read
    assert len(read) == 1 and read[0] >= 8
    assert takes[0] == takes[2] != takes[1]


def test_a_base_model_speaks_with_saved_voices_by_name_and_mix(engine):
    for name, clip in (("anna", CLIP), ("ben", CLIP[::-1].copy())):
        voice_store.save(engine.voice_from_clip(clip, name))
    assert engine.voice_names == ["anna", "ben"]
    takes = {spoken(engine, voice) for voice in ("anna", "ben", "anna:0.5,ben:0.5")}
    assert len(takes) == 3 and spoken(engine, voice_store.load("anna")) in takes
    with pytest.raises(UsageError, match="no saved voice 'cleo'; saved are anna, ben"):
        engine.check(SpeechRequest("Hello.", voice="cleo"))
