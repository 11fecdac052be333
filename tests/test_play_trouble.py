"""Stopping, cancelling, devices that disappear and libraries that are missing."""

import builtins
import sys
import threading

import numpy as np
import pytest
from fake_sound import RATE, FakeSound, noise, player

from tts_cli.audio.play import LATENCY, MAX_WAITING, DeviceLost, Player
from tts_cli.engine import CancelToken
from tts_cli.errors import TtsError


@pytest.fixture
def sound(monkeypatch):
    return FakeSound().install(monkeypatch)


@pytest.mark.parametrize("playing", [True, False])
def test_stop_silences_with_the_next_block(sound, playing):
    with player(sound) as p:
        p.write(noise(5.0))
        if playing:
            p.write(noise(5.0))
            sound.sleep(1.0)
        heard = np.count_nonzero(sound.stream.recorded)
        assert bool(heard) == playing
        stopping = threading.Thread(target=p.stop)
        stopping.start()
        stopping.join()
        assert sound.stream.active
        sound.sleep(0.02)
        assert not sound.stream.active  # aborted, so the device drops what it still holds
        assert np.count_nonzero(sound.stream.recorded) == heard
        p.write(noise(1.0))  # dropped
        before = sound.now
        p.drain()
        assert sound.now == before
        assert p.underruns == 0


@pytest.mark.parametrize("wait", ["drain", "write"])
def test_cancelling_ends_a_wait_and_the_sound(sound, wait):
    cancel = CancelToken()

    def sleep(seconds):
        sound.sleep(seconds)
        if sound.now > 2:
            cancel.cancel()

    with Player(RATE, clock=sound.clock, sleep=sleep) as p:
        p.write(noise(MAX_WAITING))
        if wait == "write":
            p.write(noise(MAX_WAITING), cancel)
        else:
            p.drain(cancel)
        assert sound.now == pytest.approx(2.0, abs=0.05)
        sound.sleep(0.02)
        assert not sound.stream.active


def test_writing_is_held_back_only_when_very_much_waits(sound):
    with player(sound) as p:
        for _ in range(6):
            p.write(noise(MAX_WAITING / 6))
        assert sound.now == 0
        p.write(noise(5.0))
        assert sound.now == pytest.approx(5.0, abs=0.1)


def test_stopping_releases_a_writer_that_is_held_back(sound):
    def sleep(seconds):
        sound.sleep(seconds)
        p.stop()

    with Player(RATE, clock=sound.clock, sleep=sleep) as p:
        p.write(noise(2 * MAX_WAITING))
    assert sound.now < 0.1


@pytest.mark.parametrize("kind", ["unplugged", "silent_loss"])
@pytest.mark.parametrize("step", ["write", "drain"])
def test_a_device_that_disappears_is_noticed(sound, kind, step):
    with player(sound) as p:
        p.write(noise(30.0))
        p.write(noise(0.1))
        sound.sleep(6.0)
        setattr(sound.stream, kind, True)
        before = sound.now
        with pytest.raises(DeviceLost, match=r"'Speakers' stopped working after 6\.0 s") as caught:
            if step == "drain":
                p.drain()
            while True:
                sound.sleep(0.1)
                p.write(noise(0.1))
        assert sound.now - before < 2.0
        assert caught.value.exit_code == 1
        p.write(noise(1.0))  # what is still made does not raise again
        p.drain()
    assert sound.stream.closed
    assert sound.rescans == 1


def test_a_stream_that_raises_is_a_lost_device(sound, monkeypatch):
    def active(stream):
        raise sound.PortAudioError("Unanticipated host error", -9999)

    with player(sound) as p:
        p.write(noise(1.0))
        monkeypatch.setattr(sound.OutputStream, "active", property(active))
        with pytest.raises(DeviceLost):
            p.write(noise(1.0))


def test_a_device_that_wakes_up_slowly_is_not_lost(sound):
    with player(sound) as p:
        sound.stream.due = 3.0
        p.write(noise(0.5))
        p.drain()
        assert p.played_seconds == 0.5


def test_a_process_that_slept_has_not_lost_its_device(sound):
    with player(sound) as p:
        p.write(noise(2.0))
        p.write(noise(2.0))
        sound.sleep(10.0)
        sound.now += 3600  # nothing ran in between
        sound.stream.due = sound.now
        p.write(noise(0.5))
        p.drain()
        assert p.played_seconds == 4.5


def test_closing_a_dead_device_may_hang_without_hanging_the_program(sound, monkeypatch):
    released = threading.Event()
    with pytest.raises(DeviceLost), player(sound) as p:
        p.write(noise(1.0))
        monkeypatch.setattr(sound.stream, "close", lambda: released.wait(30))
        sound.stream.unplugged = True
        sound.sleep(1.0)
        p.drain()
    assert not released.is_set()
    assert sound.rescans == 0
    released.set()


def test_leaving_on_an_exception_is_silent_at_once(sound):
    with pytest.raises(ZeroDivisionError), player(sound) as p:
        p.write(noise(5.0))
        raise ZeroDivisionError
    assert sound.stream.closed
    assert sound.now == 0
    p.close()  # again does nothing


def test_the_asked_latency_lets_a_signal_silence_within_200_ms():
    assert LATENCY <= 0.15


@pytest.fixture
def refused_import(monkeypatch):
    """Make `import sounddevice` raise."""
    def refuse(error):
        real = builtins.__import__
        monkeypatch.delitem(sys.modules, "sounddevice", raising=False)

        def imports(name, *rest, **named):
            if name == "sounddevice":
                raise error
            return real(name, *rest, **named)

        monkeypatch.setattr(builtins, "__import__", imports)
    return refuse


@pytest.mark.parametrize(("platform", "package"), [
    ("linux", "libportaudio2"), ("darwin", "brew install portaudio"), ("win32", "pip install"),
    ("sunos5", "usually called portaudio")])
def test_a_missing_portaudio_names_the_package(refused_import, monkeypatch, platform, package):
    refused_import(OSError("PortAudio library not found"))
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(TtsError, match=package) as caught:
        Player(RATE)
    assert "-o speech.wav" in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_sounddevice_names_the_package(refused_import):
    refused_import(ModuleNotFoundError("No module named 'sounddevice'"))
    with pytest.raises(TtsError, match="pip install sounddevice"):
        Player(RATE)


def test_a_portaudio_that_does_not_start_is_one_line(refused_import):
    refused_import(FakeSound.PortAudioError("Error initializing PortAudio: Unanticipated host error", -9999))
    with pytest.raises(TtsError, match="PortAudio does not start: Error initializing"):
        Player(RATE)
