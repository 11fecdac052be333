"""Live playback: one callback stream for the whole run, fed through a queue that neither side waits for."""

from __future__ import annotations

import atexit
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from tts_cli.audio.devices import (
    Device,
    check_output_device,
    find_output_device,
    one_line,
    output_devices,
    sound_library,
)
from tts_cli.audio.prebuffer import Prebuffer
from tts_cli.engine import CancelToken
from tts_cli.errors import TtsError

__all__ = ["Device", "DeviceLost", "Player", "check_output_device", "output_devices"]

LATENCY = 0.1  # s asked of PortAudio: its blocks are a quarter of it, and a busy interpreter may be late by less
MAX_PREBUFFER = 10.0  # s
MAX_WAITING = 60.0  # s of audio in the queue before `write` holds the generator back
POLL = 0.01  # s; sleeping in short steps keeps signal handlers running on every system, unlike Event.wait
STALL = 1.5  # s without a callback: the device is gone
START_GRACE = 4.0  # s after opening in which a device (Bluetooth, a suspended sink) may still be waking up
LONGEST_DELAY = 2.0  # s; more than this is a clock that the host API does not keep


class DeviceLost(TtsError):
    """The sound device disappeared while playing. What is written to a file may go on."""


class Player:
    """Plays mono float samples as they come: `with Player(24000) as player: player.write(...); player.drain()`.

    sample_rate       Hz of the samples; a device that refuses it gets them resampled to its own rate
    device            index, name or part of a name; None is the default
    expected_seconds  audio to come in all, as far as known: lets a slow engine start early enough, see `Prebuffer`
    max_prebuffer     seconds waiting at which playing starts in any case

    The stream runs from the beginning, on silence until enough is there. When the queue runs dry before `drain`, that
    counts as an underrun and the prebuffer decides again. Leaving the `with` block without `drain` cuts the sound.

    Raises `TtsError` when the device cannot be opened, `UsageError` when it is unknown.
    """

    def __init__(self, sample_rate: int, device: str | int | None = None, *, expected_seconds: float | None = None,
                 max_prebuffer: float = MAX_PREBUFFER, clock: Callable[[], float] = time.monotonic,
                 sleep: Callable[[float], None] = time.sleep):
        self._sd = sound_library()
        self._clock, self._sleep = clock, sleep
        self.device = find_output_device(device)
        self.sample_rate = sample_rate
        # Each of these is written by one thread only: first the callback's ...
        self._head = np.zeros(0, np.float32)  # the piece being played
        self._offset = 0
        self._played = 0  # samples handed to the device
        self._silent = 0  # zeros handed over since the last of them
        self._delay = 0.0  # s from handing over to the loudspeaker, as the device says
        self._block = 0  # frames of the last call
        self._calls = 0
        self._starved = 0  # times the queue ran dry
        self._late = 0  # times the device ran dry because the callback came late
        # ... then the writer's.
        self._queue: deque[np.ndarray] = deque()
        self._written = 0  # samples at the device's rate
        self._granted = -1  # plays while this equals `_starved`: running dry pauses without a lock
        self._ended = False
        self._stopped = False  # set by any thread, never reset
        self._lost = self._closed = False
        self._opened = self._last_call = clock()
        self._prebuffer = Prebuffer(self._opened, expected_seconds, max_prebuffer)
        self._stream = self._open()
        self.device_rate = int(self._stream.samplerate)
        self._resampler = None

    def _open(self):
        """An open, running stream: at our rate if possible, in mono if possible. Raises `TtsError`."""
        first = None
        own = self.device.default_rate
        counts = [n for n in dict.fromkeys((1, 2, self.device.channels)) if n <= self.device.channels]
        for rate in dict.fromkeys((self.sample_rate, own, 48000, 44100)):
            for channels in counts:
                stream = None
                try:
                    stream = self._sd.OutputStream(
                        samplerate=rate, device=self.device.index, channels=channels, dtype="float32",
                        latency=LATENCY, callback=self._callback)
                    stream.start()
                    return stream
                except self._sd.PortAudioError as error:
                    first = first or error
                    if stream is not None:
                        stream.close()
        raise TtsError(f"cannot play on {self.device.name!r}: {one_line(first)}; choose another device "
                       "or write a file: -o speech.wav") from first

    def _callback(self, out: np.ndarray, frames: int, times, status) -> None:
        """Called by PortAudio's own thread with out [frames, channels]: never waits, and never raises by mistake."""
        self._last_call = self._clock()
        self._calls += 1
        self._block = frames
        if self._stopped:
            out[:] = 0
            raise self._sd.CallbackAbort  # also drops what the device still holds
        playing = self._granted == self._starved
        filled = 0
        while playing and filled < frames:
            if self._offset == len(self._head):
                try:
                    self._head = self._queue.popleft()
                except IndexError:
                    break
                self._offset = 0
            n = min(frames - filled, len(self._head) - self._offset)
            out[filled:filled + n] = self._head[self._offset:self._offset + n, None]  # the same in all channels
            self._offset += n
            filled += n
        out[filled:] = 0
        if filled:
            self._delay = times.outputBufferDacTime - times.currentTime
        self._silent = frames - filled + (0 if filled else self._silent)
        self._played += filled  # after `_silent`, as `drain` reads them the other way round
        if playing and not self._ended:
            if filled < frames:
                self._starved += 1
            elif status and status.output_underflow and self._played > filled:
                self._late += 1

    def write(self, samples: np.ndarray, cancel: CancelToken | None = None) -> None:
        """Queue float samples [n], and return at once unless very much is waiting already.

        After `stop` they are dropped; after `drain` they begin something new. Raises `DeviceLost`.
        """
        self._check()
        if self._stopped or not len(samples):
            return
        if self._granted != self._starved and self._granted >= 0:
            self._prebuffer.restart()
            self._granted = -1
        if self._ended:
            self._ended = False
            self._prebuffer.restart()
            self._granted = -1
        self._prebuffer.arrived(len(samples) / self.sample_rate, self._clock())
        self._put(self._resampled(np.array(samples, np.float32)))
        if self._granted < 0 and self._prebuffer.ready(self._waiting):
            self._granted = self._starved
        while self._waiting > MAX_WAITING and not self._stopped:
            self._granted = self._starved
            self._wait(cancel)

    def expect(self, seconds: float) -> None:
        """About so much audio is still to come: lets the prebuffer of a slow engine be just long enough."""
        self._prebuffer.expect(seconds)

    def drain(self, cancel: CancelToken | None = None) -> None:
        """Announce the end and return when the last sample has left the loudspeaker. Raises `DeviceLost`.

        When `cancel` is set, or `stop` called, it returns at once and the sound stops.
        """
        if not self._stopped and self._resampler is not None and not self._ended:
            self._put(self._resampled(np.zeros(0, np.float32), last=True))
        self._ended = True
        while not self._stopped:
            self._granted = self._starved  # also after running dry at the last moment
            if self._played == self._written and (not self._played or self._silent >= self._tail):
                return
            self._wait(cancel)

    def stop(self) -> None:
        """Silence with the next block, about 25 ms. Only sets a flag: any thread or signal handler may call it."""
        self._stopped = True

    def close(self) -> None:
        """Close the device; what was not drained is not heard."""
        if self._closed:
            return
        self._stopped = self._closed = True
        # Closing may hang on hardware that is gone (PortAudio knows no hot-plug), so it is not waited for long.
        closing = threading.Thread(target=self._stream.close, name="close-sound-device", daemon=True)
        closing.start()
        closing.join(1.0 if self._lost else 5.0)
        if closing.is_alive():
            atexit.unregister(getattr(self._sd, "_exit_handler", None))  # it would hang there once more
        elif self._lost:
            self._rescan()

    def __enter__(self) -> Player:
        return self

    def __exit__(self, kind, error, traceback) -> None:
        self.close()

    @property
    def underruns(self) -> int:
        """Times the sound was interrupted because audio, or the callback, came late."""
        return self._starved + self._late

    @property
    def played_seconds(self) -> float:
        return self._played / self.device_rate

    @property
    def started(self) -> bool:
        """Whether anything has been handed to the device."""
        return self._played > 0

    @property
    def _waiting(self) -> float:
        return (self._written - self._played) / self.device_rate

    @property
    def _tail(self) -> int:
        """Frames of silence that push the last sample through the buffers and out."""
        delay = max(self._stream.latency, self._delay if self._delay <= LONGEST_DELAY else 0.0)
        return math.ceil(delay * self.device_rate) + self._block

    def _put(self, samples: np.ndarray) -> None:
        if len(samples):
            self._written += len(samples)  # first: the callback may play them at once
            self._queue.append(samples)

    def _resampled(self, samples: np.ndarray, last: bool = False) -> np.ndarray:
        if self.device_rate == self.sample_rate:
            return samples
        if self._resampler is None:
            import soxr

            self._resampler = soxr.ResampleStream(self.sample_rate, self.device_rate, 1, dtype="float32")
        resampled = self._resampler.resample_chunk(samples, last=last)
        if last:
            self._resampler = None
        return resampled

    def _wait(self, cancel: CancelToken | None) -> None:
        if cancel is not None and cancel.cancelled:
            self.stop()
            return
        self._check()
        self._sleep(POLL)

    def _check(self) -> None:
        """Raises `DeviceLost` when the stream has ended by itself or is no longer called."""
        if self._running():
            return
        self._stopped = self._lost = True
        raise DeviceLost(f"the sound device {self.device.name!r} stopped working after {self.played_seconds:.1f} s "
                         "(unplugged?); connect it again or choose another with --output-device")

    def _running(self) -> bool:
        try:
            active = self._stream.active
        except self._sd.PortAudioError:
            active = False
        if self._stopped or not active:  # in this order: stopping ends the stream
            return self._stopped
        now = self._clock()
        if now - self._last_call < STALL or now - self._opened < START_GRACE:
            return True
        calls = self._calls  # the whole process may have slept (a closed lid, Ctrl-Z): one more chance
        for _ in range(30):
            self._sleep(POLL)
            if self._calls != calls or self._stopped:
                return True
        return False

    def _rescan(self) -> None:
        """Let PortAudio look for devices again, which it does only when it starts: the next `Player` finds a new one.

        sounddevice has no public call for it; without these names the old list stays.
        """
        terminate, initialize = getattr(self._sd, "_terminate", None), getattr(self._sd, "_initialize", None)
        if terminate and initialize:
            with suppress(self._sd.PortAudioError):
                terminate()
                initialize()
