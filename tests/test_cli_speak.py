"""`tts -p TEXT -o FILE` on the tiny pair: files, streams, the last line and the exit codes."""

import re

import numpy as np
import pytest
import soundfile
from cli_tools import tts

from tts_cli.engine import Speech
from tts_cli.qwen3tts import plan as qwen3tts

SAMPLES_PER_FRAME = 1920
LAST_LINE = re.compile(r"(?P<path>.*): (?P<audio>[\d.]+) s of audio in [\d.]+ s \([\d.]+ x real time\), "
                       r"first audio \d+ ms, finish (?P<finish>eos|limit), seed (?P<seed>\d+)\n")


@pytest.fixture
def speak(pair, tmp_path):
    """tts with the tiny pair, a fixed seed and out.wav, unless the arguments name others."""
    def run(*arguments, **streams):
        given = set(map(str, arguments))
        voice = [] if "--speaker-file" in map(str, arguments) else ["--no-voice"]
        defaults = ["-m", pair[0], *voice, "--dtype", "float32"]
        defaults += [] if "-o" in given else ["-o", tmp_path / "out.wav"]
        defaults += [] if {"-s", "--seed"} & given else ["-s", "1"]
        return tts(*defaults, *arguments, **streams)
    return run


def test_a_file_is_written_and_the_last_line_tells_its_story(speak, tmp_path):
    run = speak("-p", "Hello there")
    assert run.code == 0 and run.out == b""
    told = LAST_LINE.fullmatch(run.err)
    audio, rate = soundfile.read(tmp_path / "out.wav")
    assert told["path"] == str(tmp_path / "out.wav") and told["finish"] == "eos" and told["seed"] == "1"
    assert rate == 24000 and len(audio) % SAMPLES_PER_FRAME == 0 and len(audio) > 0
    assert float(told["audio"]) == pytest.approx(len(audio) / rate, abs=0.006)
    assert np.abs(audio).max() > 0.01
    assert [path.name for path in tmp_path.iterdir()] == ["out.wav"]


def test_the_seed_that_was_drawn_repeats_the_file(speak, pair, tmp_path):
    first = tts("-m", pair[0], "--no-voice", "-p", "Hello", "-n", "6", "-o", tmp_path / "a.wav")
    seed = re.search(r"seed (\d+)", first.err)[1]
    tts("-m", pair[0], "--no-voice", "-p", "Hello", "-n", "6", "-o", tmp_path / "b.wav", "--seed", seed)
    assert (tmp_path / "a.wav").read_bytes() == (tmp_path / "b.wav").read_bytes()


def test_every_source_of_the_text_says_the_same(speak, tmp_path):
    text = "Grüße, 你好"
    speak("-p", text)
    expected = (tmp_path / "out.wav").read_bytes()
    (tmp_path / "t.txt").write_bytes(b"\xef\xbb\xbf\r\n" + text.encode() + b"\r\n")
    piped = dict(stdin=text.encode() + b"\n", encoding="cp1252")
    escaped = text.encode().decode("ascii", "surrogateescape")  # how an argument looks under LC_ALL=C
    for arguments, streams in (
            (["-f", tmp_path / "t.txt"], {}), (["-p", "-"], piped), (["-f", "-"], piped), ([], piped),
            (["-p", escaped], {}), (["-p", text], dict(stdin=b"not this"))):
        (tmp_path / "out.wav").unlink()
        assert speak(*arguments, **streams).code == 0
        assert (tmp_path / "out.wav").read_bytes() == expected


def test_standard_output_gets_one_header_and_the_samples_of_the_file(speak, tmp_path):
    speak("-p", "Hello there")
    run = speak("-p", "Hello there", "-o", "-")
    assert run.code == 0 and LAST_LINE.fullmatch(run.err)["path"] == "standard output"
    assert run.out[:4] == b"RIFF" and run.out[4:8] == b"\xff" * 4 and run.out.count(b"RIFF") == 1
    assert run.out[44:] == (tmp_path / "out.wav").read_bytes()[44:]


@pytest.mark.parametrize("name", ["a.flac", "A.WAV", "a.ogg", "mit leer – 音.wav"])
def test_formats_and_names(speak, tmp_path, name):
    assert speak("-p", "Hi", "-n", "4", "-o", tmp_path / name).code == 0
    assert soundfile.info(tmp_path / name).format == {"wav": "WAV", "flac": "FLAC", "ogg": "OGG"}[
        name.lower().rsplit(".")[-1]]


def test_codes_are_dumped(speak, tmp_path):
    assert speak("-p", "Hello there", "--dump-codes", tmp_path / "c.npy").code == 0
    codes = np.load(tmp_path / "c.npy")
    assert codes.dtype == np.int32 and codes.shape[1] == 16
    assert len(codes) * SAMPLES_PER_FRAME == soundfile.info(tmp_path / "out.wav").frames


def test_a_limit_that_was_asked_for_is_a_success_that_is_told(speak, tmp_path):
    run = speak("-p", "A long sentence that needs more than two frames.", "-n", "2")
    assert run.code == 0
    warning, last = run.err.splitlines(keepends=True)
    assert warning.startswith("tts: warning: truncated after 2 frames")
    assert LAST_LINE.fullmatch(last)["finish"] == "limit"
    assert soundfile.info(tmp_path / "out.wav").frames == 2 * SAMPLES_PER_FRAME


def test_the_automatic_budget_ends_with_3_and_a_file(speak, tmp_path, monkeypatch):
    monkeypatch.setattr(qwen3tts, "BUDGET_BASE", 2)
    monkeypatch.setattr(qwen3tts, "BUDGET_PER_TOKEN", 0)
    run = speak("-p", "Hello there")
    assert run.code == 3 and "truncated after 2 frames" in run.err and "-n FRAMES" in run.err
    assert soundfile.info(tmp_path / "out.wav").frames == 2 * SAMPLES_PER_FRAME


def test_quiet_and_verbose(speak, pair):
    assert speak("-p", "Hi", "-n", "2", "-q").err == ""
    assert speak("-p", "", "-q").err.startswith("tts: error: ")
    told = speak("-p", "Hi", "-n", "2", "-v", "-ngl", "99").err
    for word in (pair[0].name, pair[1].name, "float32", "english", "-ngl 99 is ignored"):
        assert word in told
    assert "ngl" not in speak("-p", "Hi", "-n", "2", "-ngl", "99").err


def test_progress_only_on_a_terminal(speak):
    drawn = speak("-p", "Hi", "-n", "4", terminal=True).err
    assert "\r" in drawn and LAST_LINE.fullmatch(drawn.splitlines(keepends=True)[-1].rpartition("\r")[2])
    assert "\r" not in speak("-p", "Hi", "-n", "4").err
    assert speak("-p", "Hi", "-n", "4", "-q", terminal=True).err == ""


def test_the_reference_clip_makes_another_voice(speak, tmp_path):
    clip = tmp_path / "référence clip.flac"
    time = np.arange(24000) / 24000
    soundfile.write(clip, 0.3 * np.sin(2 * np.pi * 220 * time * (1 + 0.1 * time)), 24000)
    speak("-p", "Hello there", "--greedy", "-n", "3", "--dump-codes", tmp_path / "plain.npy")
    run = speak("-p", "Hello there", "--greedy", "-n", "3", "--dump-codes", tmp_path / "clone.npy", "--speaker-file",
                clip)
    assert run.code == 0
    assert not np.array_equal(np.load(tmp_path / "plain.npy"), np.load(tmp_path / "clone.npy"))


@pytest.mark.parametrize("lang", ["en", "EN", "English", "english", "auto", "de"])
def test_languages_by_name_and_code(speak, lang):
    assert speak("-p", "Hi", "-n", "2", "--lang", lang).code == 0


def test_greedy_is_temperature_zero_for_both_models(speak, tmp_path):
    for name, arguments in (("a", ["--greedy"]), ("b", ["--temp", "0", "--sub-temp", "0", "-s", "77"])):
        assert speak("-p", "Hello there", "-n", "3", *arguments, "--dump-codes", tmp_path / f"{name}.npy").code == 0
    assert np.array_equal(np.load(tmp_path / "a.npy"), np.load(tmp_path / "b.npy"))


@pytest.mark.parametrize("error, code, words", [
    (KeyboardInterrupt(), 130, "interrupted"),
    (OSError(28, "No space left on device"), 1, "No space left on device"),
    (RuntimeError("device lost"), 1, "device lost"),
])
def test_whatever_ends_a_run_early_leaves_no_file(speak, tmp_path, monkeypatch, error, code, words):
    made = Speech.__next__

    def fail_after_the_first_chunk(self):
        if self._samples:
            raise error
        return made(self)
    monkeypatch.setattr(Speech, "__next__", fail_after_the_first_chunk)
    (tmp_path / "out.wav").write_bytes(b"the old file")
    run = speak("-p", "Hello there", "--dump-codes", tmp_path / "c.npy")
    assert run.code == code and words in run.err and run.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["out.wav"]
    assert (tmp_path / "out.wav").read_bytes() == b"the old file"
