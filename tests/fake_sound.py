"""A stand-in for the sounddevice module: devices by description, output recorded, time that only `sleep` moves.

`FakeSound(...).install(monkeypatch)` puts it into `sys.modules`. Its `clock` and `sleep` are for `Player`: sleeping
plays the open stream block by block, so nothing depends on the machine's speed. `threaded=True` instead drives the
stream from a thread of its own, about twenty times faster than real time, for tests that cannot pass a clock.
"""

import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from tts_cli.audio.play import Player

RATE = 24000
INVALID_RATE, INVALID_CHANNELS = -9997, -9998


def device(name, *, host=0, rate=48000, rates=None, channels=(1, 2), inputs=0):
    """`rates` None takes any; `channels` are the counts it takes, () for a microphone."""
    return SimpleNamespace(name=name, host=host, rate=rate, rates=rates, channels=channels, inputs=inputs)


SPEAKERS = (device("Speakers"),)


def write_module(folder, devices="fake_sound.SPEAKERS", more=""):
    """A sounddevice.py for child processes that find `folder` first: `devices` and `more` are source text."""
    folder.mkdir(exist_ok=True)
    (folder / "sounddevice.py").write_text(
        f"import sys\nsys.path.append({str(Path(__file__).parent)!r})\nimport fake_sound\n{more}\n"
        f"sys.modules['sounddevice'] = fake_sound.FakeSound({devices}, threaded=True)\n", encoding="utf-8")
    return folder


class FakeSound:
    class PortAudioError(Exception):
        pass

    class CallbackAbort(Exception):
        pass

    class CallbackStop(Exception):
        pass

    def __init__(self, devices=SPEAKERS, *, default=0, hosts=("ALSA",), block=240, latency=0.1,
                 threaded=False):
        self.devices, self.hosts, self.block, self.latency, self.threaded = devices, hosts, block, latency, threaded
        self.default = SimpleNamespace(device=[-1, default if devices else -1])
        self.streams = []
        self.now = 0.0  # s
        self.rescans = 0
        fake = self

        class OutputStream(FakeStream):
            sound = fake

        self.OutputStream = OutputStream

    def install(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "sounddevice", self)
        return self

    def query_devices(self):
        return [{"index": i, "name": d.name, "hostapi": d.host, "max_input_channels": d.inputs,
                 "max_output_channels": max(d.channels, default=0), "default_samplerate": float(d.rate)}
                for i, d in enumerate(self.devices)]

    def query_hostapis(self):
        return [{"name": name} for name in self.hosts]

    def clock(self):
        return self.now

    def sleep(self, seconds):
        """Time passes, and the running stream plays."""
        until = self.now + seconds
        stream = self.stream if self.streams else None
        while stream is not None and stream.running and stream.due <= until:
            self.now = stream.due
            stream.turn()
        self.now = until

    @property
    def stream(self):
        return self.streams[-1]

    def _terminate(self):
        self.rescans += 1

    def _initialize(self):
        pass


class FakeStream:
    """One open stream; `recorded` is what it was given, float32 [n, channels]."""

    sound: FakeSound

    def __init__(self, *, samplerate, device, channels, dtype, latency, callback):
        assert dtype == "float32"
        spec = self.sound.devices[device]
        if channels not in spec.channels:
            raise self.sound.PortAudioError("Invalid number of channels", INVALID_CHANNELS)
        if spec.rates is not None and samplerate not in spec.rates:
            raise self.sound.PortAudioError("Invalid sample rate", INVALID_RATE)
        self.samplerate, self.channels, self.latency = float(samplerate), channels, self.sound.latency
        self.callback = callback
        self.blocks = []
        self.closed = self.running = False
        self.unplugged = False  # set by a test: no more calls, and the stream ends
        self.silent_loss = False  # set by a test: no more calls, but the stream says it runs
        self.due = self.sound.now
        self.status = None
        self.sound.streams.append(self)

    def start(self):
        self.running = True
        self.due = self.sound.now
        if self.sound.threaded:
            threading.Thread(target=self._run, daemon=True).start()

    def turn(self):
        """One call of the callback."""
        if self.unplugged:
            self.running = False
            return
        self.due += self.sound.block / self.samplerate
        if self.silent_loss:
            return
        out = np.full((self.sound.block, self.channels), np.nan, np.float32)  # what is not written stands out
        times = SimpleNamespace(currentTime=self.due, outputBufferDacTime=self.due + self.latency)
        try:
            self.callback(out, self.sound.block, times, self.status)
        except self.sound.CallbackAbort:
            self.running = False
        self.blocks.append(out)

    def _run(self):
        while self.running and not self.closed:
            self.turn()
            time.sleep(self.sound.block / self.samplerate / 20)

    @property
    def active(self):
        return self.running and not self.closed

    def close(self):
        self.closed, self.running = True, False

    @property
    def recorded(self):
        return np.concatenate(self.blocks) if self.blocks else np.zeros((0, self.channels), np.float32)


def player(sound, *, sample_rate=RATE, **options):
    """A player that lives in the fake's time."""
    return Player(sample_rate, clock=sound.clock, sleep=sound.sleep, **options)


def noise(seconds, seed=0):
    """Mono float32 at `RATE` that holds no zeros."""
    return np.random.default_rng(seed).uniform(0.1, 0.9, round(seconds * RATE)).astype(np.float32)


def sounding(recorded):
    """What was recorded of `noise`, without the padding."""
    return recorded[recorded != 0]
