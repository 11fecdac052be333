"""`tts` aloud, on a fake sound device: what is heard is what -o writes, from the same chunks."""

import re

import numpy as np
import pytest
import soundfile
from cli_tools import tts
from fake_sound import FakeSound, device

from tts_cli.qwen3tts import engine as qwen3tts

SAMPLES_PER_FRAME = 1920


@pytest.fixture
def sound(monkeypatch):
    return FakeSound((device("Mic", channels=()), device("Speakers", rates=(24000, 48000))), default=1,
                     threaded=True).install(monkeypatch)


@pytest.fixture
def speak(pair):
    def run(*arguments, **streams):
        return tts("-m", pair[0], "--no-voice", "--dtype", "float32", "-s", "1", *arguments, **streams)
    return run


def heard(stream):
    """What was played without silence: this device is faster than the model, and waits for it."""
    return sounding(stream.recorded[:, 0])


def sounding(samples):
    return samples[samples != 0]


def test_without_an_output_it_is_played(speak, sound, tmp_path):
    run = speak("-p", "Hello there", "-n", "6")
    assert run.code == 0 and run.out == b"" and "played: 0.48 s of audio" in run.err
    speak("-p", "Hello there", "-n", "6", "-o", tmp_path / "a.wav", "--format", "wavf32")
    written = soundfile.read(tmp_path / "a.wav", dtype="float32")[0]
    played = heard(sound.stream)
    assert len(sound.streams) == 1 and sound.stream.closed
    assert np.array_equal(played, sounding(written))


def test_play_and_a_file_get_the_same(speak, sound, tmp_path):
    run = speak("-p", "Hello there", "-n", "6", "--play", "-o", tmp_path / "a.wav", "--format", "wavf32")
    assert run.code == 0 and f"{tmp_path / 'a.wav'}: 0.48 s" in run.err
    written = soundfile.read(tmp_path / "a.wav", dtype="float32")[0]
    assert len(written) == 6 * SAMPLES_PER_FRAME
    assert np.array_equal(heard(sound.stream), sounding(written))


def test_an_output_alone_opens_no_device(speak, sound, tmp_path):
    assert speak("-p", "Hi", "-n", "2", "-o", tmp_path / "a.wav").code == 0
    assert sound.streams == []


def test_underruns_are_told_with_v(speak, sound):
    assert re.search(r"^underruns: \d+$", speak("-p", "Hi", "-n", "3", "-v").err, re.MULTILINE)
    assert "underruns" not in speak("-p", "Hi", "-n", "3").err


@pytest.fixture
def lost(sound, monkeypatch):
    """The device goes when the second chunk of samples comes."""
    from tts_cli.audio.play import DeviceLost, Player

    written = []

    def write(self, samples, cancel=None):
        written.append(samples)
        if len(written) == 2:
            raise DeviceLost("the sound device 'Speakers' stopped working")
    monkeypatch.setattr(Player, "write", write)
    return written


def test_a_lost_device_stops_the_sound_and_the_file_goes_on(speak, lost, tmp_path):
    run = speak("-p", "Hello there", "-n", "6", "--play", "-o", tmp_path / "a.wav")
    assert run.code == 1 and len(lost) == 2
    assert "stopped working; the file goes on being written" in run.err and "a.wav: 0.48 s of audio" in run.err
    assert soundfile.info(tmp_path / "a.wav").frames == 6 * SAMPLES_PER_FRAME


def test_a_lost_device_alone_ends_the_run(speak, lost):
    run = speak("-p", "Hello there", "-n", "6")
    assert run.code == 1 and "stopped working" in run.error


def test_device_by_name_and_number(speak, sound, monkeypatch):
    assert speak("-p", "Hi", "-n", "2", "--output-device", "speak").code == 0
    assert speak("-p", "Hi", "-n", "2", "--output-device", "1").code == 0
    monkeypatch.setattr(qwen3tts, "load_models", None)  # reading weights would fail
    for wrong in ("Headset", "0", "7"):
        run = speak("-p", "Hi", "--output-device", wrong)
        assert run.code == 2 and "1: Speakers" in run.error


def test_list_devices(sound):
    run = tts("--list-devices")
    assert (run.code, run.err) == (0, "") and run.out.decode() == "*   1  Speakers  (ALSA, 48000 Hz)\n"


def test_portaudio_missing_is_told_before_the_model_is_read(speak, monkeypatch, tmp_path):
    (tmp_path / "sounddevice.py").write_text("raise OSError('PortAudio library not found')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "sounddevice", raising=False)
    monkeypatch.setattr(qwen3tts, "load_models", None)
    for arguments in (["-p", "Hi"], ["--list-devices"], ["-p", "Hi", "--play", "-o", tmp_path / "a.wav"]):
        run = speak(*arguments)
        assert run.code == 1 and "PortAudio" in run.error and "-o speech.wav" in run.error


def test_the_chunk_schedule_changes_no_sample(speak, sound, tmp_path):
    for number, schedule in enumerate(("1,1,2,4,8,12", "1", "300")):
        assert speak("-p", "Hello", "-n", "9", "--chunk-frames", schedule, "-o", tmp_path / f"{number}.wav").code == 0
    first, *others = (soundfile.read(tmp_path / f"{n}.wav")[0] for n in range(3))
    for other in others:
        assert np.abs(first - other).max() < 1e-4
