"""Which device a name means; what is said when there is none."""

import subprocess
import sys

import pytest
from fake_sound import FakeSound, device

from tts_cli.audio.devices import find_output_device
from tts_cli.audio.play import check_output_device, output_devices
from tts_cli.errors import TtsError, UsageError

CARDS = [
    device("Microphone", channels=(), inputs=1),
    device("Speakers (Realtek)", rate=44100),
    device("Headphones", rate=48000),
    device("USB Headset", rate=16000),
    device("Speakers (Realtek)", host=1),
    device("HDMI 1", host=1),
]


@pytest.fixture
def sound(monkeypatch):
    return FakeSound(CARDS, default=2, hosts=("MME", "WASAPI")).install(monkeypatch)


def test_the_list_has_outputs_only_and_marks_the_default(sound):
    assert [(d.index, d.name, d.host_api, d.default_rate, d.is_default) for d in output_devices()] == [
        (1, "Speakers (Realtek)", "MME", 44100, False), (2, "Headphones", "MME", 48000, True),
        (3, "USB Headset", "MME", 16000, False), (4, "Speakers (Realtek)", "WASAPI", 48000, False),
        (5, "HDMI 1", "WASAPI", 48000, False)]


@pytest.mark.parametrize(("word", "index"), [
    (None, 2), (5, 5), ("5", 5), (" 3 ", 3), ("Headphones", 2), ("headphones", 2), ("hdmi", 5), ("USB", 3),
    ("phones", 2), ("Speakers (Realtek)", 1), ("speakers", 1), ("Speakers (Realtek), WASAPI", 4), ("tek), wasapi", 4)])
def test_a_device_is_found_by_index_name_or_unique_part(sound, word, index):
    assert find_output_device(word).index == index


@pytest.mark.parametrize("word", ["tuba", 0, "0", 6, "-1", ""])
def test_an_unknown_device_is_refused_with_the_list(sound, word):
    with pytest.raises(UsageError, match="there is no output device") as caught:
        check_output_device(word)
    assert "2: Headphones, MME" in str(caught.value) and "5: HDMI 1, WASAPI" in str(caught.value)
    assert "Microphone" not in str(caught.value) and "\n" not in str(caught.value)


def test_an_ambiguous_device_is_refused_with_the_candidates(sound):
    with pytest.raises(UsageError, match=r"'he?.*' fits several output devices") as caught:
        check_output_device("hea")
    assert "2: Headphones" in str(caught.value) and "3: USB Headset" in str(caught.value)
    assert "HDMI" not in str(caught.value)


def test_an_exact_name_beats_a_longer_one(monkeypatch):
    FakeSound([device("USB"), device("usb"), device("USB 2")]).install(monkeypatch)
    assert find_output_device("usb").index == 1
    assert find_output_device("USB").index == 0


@pytest.mark.parametrize("devices", [[], [device("Microphone", channels=(), inputs=2)]])
@pytest.mark.parametrize("word", [None, "Speakers"])
def test_no_device_is_said_with_the_way_out(monkeypatch, devices, word):
    FakeSound(devices).install(monkeypatch)
    with pytest.raises(TtsError, match="no sound device.* -o speech.wav$") as caught:
        check_output_device(word)
    assert caught.value.exit_code == 1
    assert output_devices() == []


def test_without_a_default_the_first_output_is_taken(monkeypatch):
    FakeSound(CARDS, default=-1, hosts=("MME", "WASAPI")).install(monkeypatch)
    assert find_output_device(None).index == 1


def test_a_device_that_can_be_found_passes(sound):
    assert check_output_device("HDMI") is None


def test_a_failing_list_is_one_line(sound, monkeypatch):
    def fails():
        raise sound.PortAudioError("Error querying host API", -9979)

    monkeypatch.setattr(sound, "query_hostapis", fails)
    with pytest.raises(TtsError, match="cannot list the sound devices: Error querying host API;"):
        output_devices()


def test_importing_the_player_does_not_touch_the_sound_card():
    code = "import sys, tts_cli.audio.play; sys.exit('sounddevice' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
