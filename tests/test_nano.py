"""The model that comes with the package: real speech with a natural end, from the command line to the samples."""

import json

import numpy as np
import pytest
import soundfile
from cli_tools import tts
from server_tools import serving

from training.ears import Ears, Tally
from tts_cli.engine import SpeechRequest
from tts_cli.kokoro import builtin
from tts_cli.loading import NANO, open_engine
from tts_cli.nano import MMPROJ, TALKER

RATE = 24000
TEXTS = ("Good morning.", "The train leaves at seven.", "She put the letter on the table and closed the door.")


@pytest.fixture(scope="module")
def engine():
    engine = open_engine(NANO, device="cpu")
    engine.load()
    return engine


def spoken(engine, text, **options):
    speech = engine.speak(SpeechRequest(text, **options))
    return np.concatenate([chunk.samples for chunk in speech]), speech.result


def test_both_files_are_small_and_what_they_say():
    run = tts("inspect", "nano")
    assert run.code == 0 and run.out == tts("inspect", TALKER, MMPROJ).out
    assert TALKER.stat().st_size + MMPROJ.stat().st_size < 25e6
    assert open_engine(NANO, device="cpu").pair.single_voice


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("seed", [1, 2])
def test_it_ends_by_itself_after_as_long_as_the_text_takes(engine, text, seed):
    """It speaks about 12 letters a second, with some silence around."""
    samples, result = spoken(engine, text, seed=seed)
    assert result.finish_reason == "eos"
    assert 0.6 * len(text) / 12.5 < len(samples) / RATE < 1.6 * len(text) / 12.5 + 0.8
    loud = np.abs(samples) > 0.02
    assert loud.mean() > 0.1 and not loud[:600].any() and np.abs(samples).max() < 1


def test_other_texts_and_seeds_sound_otherwise(engine):
    one, again, seed, text = (spoken(engine, t, seed=s)[0].tobytes() for t, s in
                              ((TEXTS[0], 1), (TEXTS[0], 1), (TEXTS[0], 2), (TEXTS[1], 1)))
    assert one == again and len({one, seed, text}) == 3


def test_real_speech_is_the_same_in_pieces_of_any_size(engine):
    small, large = (spoken(engine, TEXTS[1], seed=3, chunk_frames=(n,))[0] for n in (1, 1000))
    assert small.shape == large.shape and np.abs(small - large).max() < 1e-5 < np.abs(small).max()


def test_the_server_streams_the_same_speech(engine):
    with serving(engine) as server:
        streamed, whole = (server.pcm(TEXTS[1], seed=3, stream=stream) for stream in (True, False))
    samples, _ = spoken(engine, TEXTS[1], seed=3)
    assert streamed == whole
    assert np.abs(np.frombuffer(whole, "<i2") / 32768 - samples).max() < 1e-3


def test_a_long_sentence_is_cut_to_what_it_learned(tmp_path):
    text = "This sentence is long, and after a comma it goes on for quite a while, and then it goes on once more."
    assert len(text) > open_engine(NANO, device="cpu").pair.max_chars
    run = tts("-m", "nano", "-p", text, "-s", "1", "-o", tmp_path / "a.wav", "--srt", tmp_path / "a.srt")
    assert run.code == 0 and "finish eos" in run.err and "utterances" in run.err
    assert 6 < soundfile.info(tmp_path / "a.wav").duration < 14
    assert (tmp_path / "a.srt").read_text().count("-->") > 1


def test_it_speaks_where_nothing_else_is_installed_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(builtin, "find_spec", lambda name: None)
    run = tts("-p", "Hello.", "-o", tmp_path / "a.wav", "-s", "1")
    assert run.code == 0 and soundfile.info(tmp_path / "a.wav").duration > 0.4
    assert "nano speaks" in run.err and "tts-cli[builtin]" in run.err


def test_it_can_be_kept_as_the_default(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert tts("config", "set", "model", "nano").code == 0
    run = tts("-p", "Hello.", "-o", tmp_path / "a.wav", "-s", "1")
    assert run.code == 0 and "Kokoro" not in run.err
    assert (tmp_path / "a.wav").read_bytes() == said_by_name(tmp_path)


def said_by_name(folder) -> bytes:
    assert tts("-m", "nano", "-p", "Hello.", "-o", folder / "b.wav", "-s", "1").code == 0
    return (folder / "b.wav").read_bytes()


def test_a_folder_of_its_name_does_not_matter(tmp_path, monkeypatch):
    (tmp_path / "nano").mkdir()
    monkeypatch.chdir(tmp_path)
    assert tts("inspect", "nano").code == 0
    (tmp_path / "nano").rmdir()
    (tmp_path / "nano").write_bytes(b"a file of one's own")
    assert tts("inspect", "nano").code == 1


def test_it_is_measured_where_no_other_model_is_named():
    run = tts("bench", "--frames", "3", "--no-cold", "--json")
    assert run.code == 0 and "measuring nano" in run.err and json.loads(run.out)["frames"] == 3


def test_it_refuses_to_clone(tmp_path):
    soundfile.write(tmp_path / "ref.wav", np.random.default_rng(0).uniform(-0.3, 0.3, RATE), RATE)
    run = tts("-m", "nano", "-p", "Hello.", "--speaker-file", tmp_path / "ref.wav", "-o", tmp_path / "a.wav")
    assert run.code == 2 and "one voice" in run.error and not (tmp_path / "a.wav").exists()


def test_what_it_says_is_understood(engine):
    """Whisper hears most of the words of three sentences."""
    ears, tally = Ears(), Tally()
    for text in TEXTS:
        tally.add(text, ears(spoken(engine, text, seed=1)[0]))
    assert tally.words == sum(len(text.split()) for text in TEXTS) and tally.rate < 25
