"""A real sound system without hardware: a PulseAudio daemon of our own with a null sink, and a recorder on its monitor.

`with PulseServer() as server:` gives `server.environment` for a child process whose PortAudio then finds the
device "pulse"; `with server.recording() as take:` keeps what the loudspeaker would have got. Debian: `PACKAGES`.
"""

import ctypes.util
import os
import shutil
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

PACKAGES = ("pulseaudio", "pulseaudio-utils", "libportaudio2", "libasound2-plugins")
RATE = 24000  # of the sink, so that nothing is resampled on the way
SINK = "null_out"
REQUIRED = "TTS_TEST_SOUND"  # set to 1 where the packages were installed: then nothing is skipped
PATIENCE = 20.0  # s


def missing() -> str | None:
    """Why sound cannot be tested here, or None."""
    if os.name != "posix" or not Path("/usr/share/alsa/alsa.conf").exists():
        return "real sound is tested on Linux with ALSA"
    absent = [name for name in ("pulseaudio", "parec", "pactl") if shutil.which(name) is None]
    if ctypes.util.find_library("portaudio") is None:
        absent.append("PortAudio")
    if not any(Path("/usr").glob("lib*/**/alsa-lib/libasound_module_pcm_pulse.so")):
        absent.append("ALSA's pulse plugin")
    return f"not installed: {', '.join(absent)} (apt-get install {' '.join(PACKAGES)})" if absent else None


def need_sound() -> None:
    """Skip the calling test, or fail it where sound is required."""
    reason = missing()
    if reason and os.environ.get(REQUIRED) == "1":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)


class PulseServer:
    """The daemon; `environment` leads PulseAudio's and ALSA's clients to it and to nothing else."""

    def __init__(self):
        # A folder of our own: a socket's path must be short, and ALSA takes spaces for the end of a path.
        self._run = tempfile.TemporaryDirectory(prefix="pulse-")
        folder = Path(self._run.name)
        self.log = folder / "pulseaudio.log"
        self._socket = folder / "native"
        alsa = folder / "asound.conf"
        alsa.write_text("</usr/share/alsa/alsa.conf>\npcm.pulse { type pulse }\nctl.pulse { type pulse }\n"
                        "pcm.!default { type pulse }\nctl.!default { type pulse }\n", encoding="utf-8")
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("PULSE_")}
        self.environment |= {
            "XDG_RUNTIME_DIR": self._run.name, "PULSE_SERVER": f"unix:{self._socket}",
            "PULSE_COOKIE": str(folder / "cookie"), "ALSA_CONFIG_PATH": str(alsa)}
        self._process = None

    def __enter__(self):
        # norewinds: the sink then works in pieces of 50 ms. Its usual 2 s would stall the first client for so long.
        with open(self.log, "wb") as log:
            self._process = subprocess.Popen(
                ["pulseaudio", "-n", "--daemonize=no", "--exit-idle-time=-1", "--use-pid-file=no", "--realtime=no",
                 "-L", f"module-native-protocol-unix auth-anonymous=1 socket={self._socket}",
                 "-L", f"module-null-sink sink_name={SINK} rate={RATE} channels=1 norewinds=1"],
                env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + PATIENCE
        while subprocess.run(["pactl", "info"], env=self.environment, capture_output=True).returncode:
            if time.monotonic() > deadline or self._process.poll() is not None:
                said = self.log.read_text(errors="replace")
                self.__exit__()
                raise RuntimeError(f"pulseaudio does not answer:\n{said}")
            time.sleep(0.05)
        return self

    def __exit__(self, *_):
        self.kill()
        self._run.cleanup()

    def kill(self) -> None:
        """As when the device is unplugged."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    @contextmanager
    def recording(self):
        """A `Recording` that runs inside the block; its samples are complete afterwards."""
        take = Recording(self.environment)
        try:
            take.wait_for(0.1)
            yield take
            take.wait_for(len(take.samples()) / RATE + 0.5)  # what was played is still on its way through the server
        finally:
            take.end()


class Recording:
    """float32 mono samples at `RATE` from the sink's monitor."""

    def __init__(self, environment):
        self._raw = bytearray()
        self._process = subprocess.Popen(
            ["parec", "--raw", "--format=float32le", f"--rate={RATE}", "--channels=1", "--latency-msec=20",
             "-d", f"{SINK}.monitor"], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        while data := self._process.stdout.read1(65536):
            self._raw += data

    def samples(self) -> np.ndarray:
        raw = bytes(self._raw)
        return np.frombuffer(raw[:len(raw) // 4 * 4], "<f4")

    def wait_for(self, seconds: float) -> None:
        """Until so much has been recorded in all."""
        deadline = time.monotonic() + PATIENCE
        while len(self._raw) < 4 * RATE * seconds:
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError("the monitor of the null sink gives no sound")
            time.sleep(0.02)

    def end(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._reader.join()
        self._process.stdout.close()


def best_lag(recorded: np.ndarray, wanted: np.ndarray) -> int:
    """Sample of `recorded` at which `wanted` begins, by cross-correlation."""
    n = 1 << (len(recorded) + len(wanted)).bit_length()
    correlation = np.fft.irfft(np.fft.rfft(recorded, n) * np.conj(np.fft.rfft(wanted, n)), n)
    lag = int(np.argmax(correlation))
    return lag if lag < len(recorded) else lag - n


def compare(recorded: np.ndarray, wanted: np.ndarray) -> tuple[float, float]:
    """(correlation after aligning, longest gap in seconds: silence in the recording where `wanted` sounds).

    What is missing at the end counts against both.
    """
    lag = best_lag(recorded, wanted)
    heard = np.zeros(len(wanted))
    begin, end = max(lag, 0), min(lag + len(wanted), len(recorded))
    heard[begin - lag:end - lag] = recorded[begin:end]
    norm = np.linalg.norm(heard) * np.linalg.norm(wanted)
    correlation = float(heard @ wanted / norm) if norm else 0.0
    dead = (np.abs(heard) < 1e-4) & (np.abs(wanted) >= 1e-3)
    quiet = (np.abs(heard) < 1e-4) & (np.abs(wanted) < 1e-3)  # neither ends a gap nor makes one
    longest = run = 0
    for is_dead, is_quiet in zip(dead, quiet, strict=True):
        run = run + 1 if is_dead else run if is_quiet else 0
        longest = max(longest, run)
    return correlation, longest / RATE
