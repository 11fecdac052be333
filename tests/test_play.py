"""The player against a fake sound device whose time only moves when the player sleeps."""

import numpy as np
import pytest
from fake_sound import RATE, FakeSound, device, noise, player, sounding

from tts_cli.audio.play import Player
from tts_cli.errors import TtsError


@pytest.fixture
def sound(monkeypatch):
    return FakeSound().install(monkeypatch)


def feed(player, sound, speed, seconds=8.0, chunk=0.4):
    """An engine that makes `chunk` seconds of audio in chunk / speed seconds."""
    samples = noise(seconds)
    n = round(chunk * RATE)
    for i in range(0, len(samples), n):
        sound.sleep(len(samples[i:i + n]) / RATE / speed)
        player.write(samples[i:i + n])
    player.drain()
    return samples


def test_every_sample_is_played_once_and_in_order(sound):
    samples = noise(3.0)
    with player(sound) as p:
        at = 0
        for n in (5000, 1, 7, 239, 240, 241, 0, len(samples)):
            p.write(samples[at:at + n])
            at += n
            sound.sleep(0.001)
        p.drain()
        recorded = sound.stream.recorded[:, 0]
        assert p.underruns == 0
        assert p.played_seconds == pytest.approx(3.0)
    start = np.flatnonzero(recorded)[0]
    np.testing.assert_array_equal(recorded[start:start + len(samples)], samples)  # no hole in it either
    assert not recorded[:start].any() and not recorded[start + len(samples):].any()


def test_draining_waits_until_the_last_sample_left_the_loudspeaker(monkeypatch):
    for latency in (0.02, 0.4):
        sound = FakeSound(latency=latency).install(monkeypatch)
        with player(sound) as p:
            p.write(noise(0.5))
            p.drain()
            silence = len(sound.stream.recorded) - 1 - np.flatnonzero(sound.stream.recorded[:, 0])[-1]
        assert latency <= silence / RATE < latency + 0.05


def test_draining_nothing_returns_at_once(sound):
    with player(sound) as p:
        p.drain()
        assert sound.now == 0
        assert not p.started


def test_writing_goes_on_after_draining(sound):
    first, second = noise(0.3, 1), noise(0.3, 2)
    with player(sound) as p:
        p.write(first)
        p.drain()
        sound.sleep(5)
        p.write(second)
        p.drain()
        assert p.underruns == 0
    assert len(sound.streams) == 1
    np.testing.assert_array_equal(sounding(sound.stream.recorded), np.concatenate([first, second]))


def test_a_fast_engine_is_heard_at_once(sound):
    with player(sound) as p:
        sound.sleep(0.3)
        p.write(noise(0.08))
        sound.sleep(0.01)
        assert not p.started  # one chunk says little about the speed
        p.write(noise(0.08))
        sound.sleep(0.01)
        assert p.started


def test_a_slow_engine_is_prebuffered_and_then_has_no_gap(sound):
    with player(sound, expected_seconds=8.0) as p:
        samples = feed(p, sound, speed=0.7)
        assert p.underruns == 0
    recorded = sound.stream.recorded[:, 0]
    start = np.flatnonzero(recorded)[0]
    assert 8 / 0.7 - 8 < start / RATE < 8  # waits, but not for the whole
    np.testing.assert_array_equal(recorded[start:start + len(samples)], samples)


def test_a_hopeless_engine_starts_at_the_limit_counts_underruns_and_loses_nothing(sound):
    with player(sound, max_prebuffer=1.0) as p:
        samples = feed(p, sound, speed=0.3)
        assert 2 <= p.underruns <= 8
    recorded = sound.stream.recorded[:, 0]
    assert not np.isnan(recorded).any()
    np.testing.assert_array_equal(sounding(recorded), samples)


def test_silence_before_the_start_and_after_the_end_is_no_underrun(sound):
    with player(sound) as p:
        sound.sleep(3)
        p.write(noise(0.5))
        p.write(noise(0.5))
        p.drain()
        sound.sleep(3)
        assert p.underruns == 0


def test_a_late_callback_counts_as_an_underrun(sound):
    class Underflow:
        output_underflow = True

    with player(sound) as p:
        sound.stream.status = Underflow()
        sound.sleep(1.0)
        assert p.underruns == 0  # nothing was playing
        sound.stream.status = None
        p.write(noise(5.0))
        sound.sleep(0.5)
        sound.stream.status = Underflow()
        sound.sleep(0.01)
        assert p.underruns == 1


@pytest.mark.parametrize("rate", [44100, 48000])
def test_a_device_that_refuses_the_rate_gets_resampled_audio(monkeypatch, rate):
    sound = FakeSound([device("Card", rate=rate, rates=(44100, 48000))]).install(monkeypatch)
    times = np.arange(2 * RATE) / RATE
    with player(sound) as p:
        assert p.device_rate == rate
        wave = (0.5 * np.sin(2 * np.pi * (200 + 400 * times) * times)).astype(np.float32)
        for i in range(0, len(wave), 1920):
            p.write(wave[i:i + 1920])
        p.drain()
        assert p.played_seconds == pytest.approx(2.0, abs=1 / RATE)
    recorded = sound.stream.recorded[:, 0]
    recorded = recorded[np.flatnonzero(np.abs(recorded) > 1e-7)[0]:]
    ideal = np.arange(2 * rate) / rate
    ideal = 0.5 * np.sin(2 * np.pi * (200 + 400 * ideal) * ideal)
    lag = max(range(8), key=lambda lag: np.dot(recorded[:rate], ideal[lag:lag + rate]))
    n = 2 * rate - lag - 8
    assert np.corrcoef(recorded[:n], ideal[lag:lag + n])[0, 1] > 0.999
    assert np.abs(recorded[:n]).max() == pytest.approx(0.5, abs=0.01)  # as loud as it was


@pytest.mark.parametrize("channels", [(2,), (8,)])
def test_a_device_without_mono_gets_the_same_in_all_channels(monkeypatch, channels):
    sound = FakeSound([device("Interface", channels=channels, rates=(48000,))]).install(monkeypatch)
    samples = noise(0.2)
    with player(sound, sample_rate=48000) as p:
        p.write(samples)
        p.drain()
    recorded = sound.stream.recorded
    assert recorded.shape[1] == channels[0]
    assert (recorded == recorded[:, :1]).all()
    np.testing.assert_array_equal(sounding(recorded[:, 0]), samples)


def test_a_device_that_takes_nothing_is_said_in_one_line(monkeypatch):
    sound = FakeSound([device("Broken", rates=())]).install(monkeypatch)
    with pytest.raises(TtsError, match=r"cannot play on 'Broken': Invalid sample rate; .* -o speech.wav$") as caught:
        player(sound)
    assert caught.value.exit_code == 1


def test_the_callers_array_may_be_used_again(sound):
    samples = noise(0.5)
    buffer = samples.copy()
    with player(sound) as p:
        p.write(buffer)
        buffer[:] = 9
        p.drain()
    np.testing.assert_array_equal(sounding(sound.stream.recorded), samples)


def test_a_threaded_device_plays_everything_too(monkeypatch):
    sound = FakeSound(threaded=True).install(monkeypatch)
    samples = noise(1.0)
    with Player(RATE) as p:
        for i in range(0, len(samples), 1000):
            p.write(samples[i:i + 1000])
        p.drain()
    np.testing.assert_array_equal(sounding(sound.stream.recorded), samples)
