"""Long text and lines: several utterances as one file, subtitles, a file per line."""

import re

import numpy as np
import pytest
import soundfile
from cli_tools import tts
from fake_sound import FakeSound

from tts_cli.qwen3tts import plan as qwen3tts

RATE, SAMPLES_PER_FRAME = 24000, 1920
SENTENCES = ["The first sentence is here, it is not short.", "The second one follows it and is as long.",
             "A new paragraph begins with this sentence.", "And it ends."]
TEXT = "{} {}\n\n{} [pause:1.5s] {}".format(*SENTENCES)


@pytest.fixture
def speak(pair, monkeypatch):
    """Every utterance is cut after two frames, before which the model may not end it: so lengths are known."""
    monkeypatch.setattr(qwen3tts, "BUDGET_BASE", 2)
    monkeypatch.setattr(qwen3tts, "BUDGET_PER_TOKEN", 0)

    def run(*arguments, **streams):
        return tts("-m", pair[0], "--dtype", "float32", "-s", "1", *arguments, **streams)
    return run


def test_utterances_are_joined_with_pauses_and_told_in_subtitles(speak, tmp_path):
    run = speak("-p", TEXT, "--max-chars", "50", "--gap", "0.5", "-o", tmp_path / "a.wav", "--dump-codes",
                tmp_path / "c.npy", "--srt", tmp_path / "a.srt", "--vtt", tmp_path / "a.vtt")
    assert run.code == 3 and "truncated in utterance 1, 2, 3, 4" in run.err and run.err.endswith(", 4 utterances\n")
    spoken = 2 * SAMPLES_PER_FRAME / RATE
    audio = soundfile.read(tmp_path / "a.wav")[0]
    assert len(audio) == round((4 * spoken + 0.5 + 0.6 + 1.5) * RATE)
    assert not audio[round(spoken * RATE):round((spoken + 0.5) * RATE)].any()
    assert np.load(tmp_path / "c.npy").shape == (8, 16)
    cues = (tmp_path / "a.srt").read_text(encoding="utf-8").strip().split("\n\n")
    assert [cue.split("\n", 2)[2].replace("\n", " ") for cue in cues] == SENTENCES
    assert cues[1].split("\n")[1] == "00:00:00,660 --> 00:00:00,820"
    assert (tmp_path / "a.vtt").read_text(encoding="utf-8").startswith("WEBVTT\n\n00:00:00.000 --> 00:00:00.160\n")


def test_a_stream_holds_the_samples_of_the_file(speak, tmp_path):
    speak("-p", TEXT, "--max-chars", "50", "-o", tmp_path / "a.wav")
    run = speak("-p", TEXT, "--max-chars", "50", "-o", "-", "--format", "pcm")
    assert run.out == (tmp_path / "a.wav").read_bytes()[44:]


def test_a_file_is_read_in_order(speak, tmp_path):
    text = " ".join(f"Sentence {n} is nearly as long as forty are." for n in range(12))
    (tmp_path / "t.txt").write_text(text, encoding="utf-8")
    speak("-f", tmp_path / "t.txt", "--max-chars", "50", "-o", tmp_path / "a.wav", "--srt", tmp_path / "a.srt")
    numbers = [int(n) for n in re.findall(r"Sentence (\d+)", (tmp_path / "a.srt").read_text(encoding="utf-8"))]
    assert numbers == list(range(12))


def test_an_explicit_limit_counts_over_all_utterances(speak, tmp_path):
    run = speak("-p", TEXT, "--max-chars", "50", "-n", "4", "--greedy", "-o", tmp_path / "a.wav", "--gap", "0")
    assert run.code == 0 and "truncated after 4 frames" in run.err


def test_progress_names_the_utterance(speak, tmp_path):
    drawn = speak("-p", TEXT, "--max-chars", "50", "-o", tmp_path / "a.wav", terminal=True).err
    assert "utterance 4: " in drawn and "x real time" in drawn


# ---- --lines ------------------------------------------------------------------------------------------------------


def test_a_file_per_line(speak, tmp_path):
    out = tmp_path / "out {1}"
    run = speak("--lines", "-n", "2", "--output-dir", out, stdin="Hello.\n\nGrüße.\r\n. . .\nLast".encode())
    assert run.code == 1 and "line 4: nothing to speak" in run.err and "line 5, " in run.err
    assert sorted(path.name for path in out.iterdir()) == ["0001.wav", "0003.wav", "0005.wav"]
    speak("-p", "Grüße.", "-n", "2", "-o", tmp_path / "one.wav")
    assert (out / "0003.wav").read_bytes() == (tmp_path / "one.wav").read_bytes()
    assert speak("--lines", "-n", "2", "--output-dir", out, "--format", "flac", stdin=b"a").code == 0
    assert soundfile.info(out / "0001.flac").frames == 2 * SAMPLES_PER_FRAME


def test_lines_into_one_stream(speak):
    run = speak("--lines", "-n", "2", "-o", "-", stdin=b"Hello.\nWorld.\n")
    assert run.code == 0 and run.out[:4] == b"RIFF" and len(run.out) == 44 + 2 * 2 * 2 * SAMPLES_PER_FRAME


def test_lines_are_played_one_after_another(speak, monkeypatch):
    sound = FakeSound(threaded=True).install(monkeypatch)
    run = speak("--lines", "-n", "2", stdin=b"Hello.\nWorld.\n/help\n")
    assert run.code == 0 and run.err.count("played: ") == 3
    assert all(np.count_nonzero(stream.recorded[:, 0]) > SAMPLES_PER_FRAME for stream in sound.streams)
    assert len(sound.streams) == 3


def test_no_lines_is_no_error(speak, tmp_path):
    assert speak("--lines", "--output-dir", tmp_path / "out", stdin=b"").code == 0


def test_a_line_that_is_not_utf8_is_left_out(speak, tmp_path):
    run = speak("--lines", "-n", "2", "--output-dir", tmp_path / "out", stdin=b"gr\xfcn\nHello\n")
    assert run.code == 1 and "line 1: " in run.err and (tmp_path / "out" / "0002.wav").exists()
