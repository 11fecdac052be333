"""`tts` on a real sound system: what the loudspeaker got is what -o writes."""

import subprocess
import sys
from pathlib import Path

import pytest
import soundfile
from pulse import PulseServer, compare, need_sound

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def server():
    need_sound()
    with PulseServer() as server:
        yield server


def run(server, *arguments):
    environment = {**server.environment, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-m", "tts_cli", *map(str, arguments)], cwd=ROOT, env=environment,
                          capture_output=True, text=True, timeout=120)


def test_what_is_heard_is_what_is_written(server, endless, tmp_path):
    command = ["-m", endless[0], "-p", "Hello there", "--greedy", "-n", "20", "--dtype", "float32"]
    run(server, *command, "-o", tmp_path / "a.wav")
    with server.recording() as take:
        done = run(server, *command, "-v")
    assert done.returncode == 0, done.stderr
    assert "played: 1.60 s of audio" in done.stderr
    correlation, gap = compare(take.samples(), soundfile.read(tmp_path / "a.wav")[0])
    underruns = int(done.stderr.rpartition("underruns: ")[2])
    # A gap is allowed only where it was counted: on a machine too busy to keep up.
    assert underruns or (correlation >= 0.99 and gap <= 0.02)


def test_devices_are_listed(server):
    done = run(server, "--list-devices")
    assert done.returncode == 0 and "pulse" in done.stdout and "*" in done.stdout
