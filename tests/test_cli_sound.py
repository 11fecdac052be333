"""`tts` on a real sound system: what the loudspeaker got is what -o writes."""

import subprocess
import sys
from pathlib import Path

import pytest
import soundfile
from pulse import PulseServer, compare, need_sound

ROOT = Path(__file__).parent.parent
TAKES = 3  # a gap is in order only where the machine was too busy to keep up, which no machine is for long


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
    for _ in range(TAKES):
        with server.recording() as take:
            done = run(server, *command, "-v")
        assert done.returncode == 0, done.stderr
        assert "played: 1.60 s of audio" in done.stderr
        if (underruns := int(done.stderr.rpartition("underruns: ")[2])) == 0:
            break
    assert underruns == 0, f"the machine did not keep up with a tiny model in any of {TAKES} takes"
    correlation, gap = compare(take.samples(), soundfile.read(tmp_path / "a.wav")[0])
    assert correlation >= 0.99 and gap <= 0.02


def test_devices_are_listed(server):
    done = run(server, "--list-devices")
    assert done.returncode == 0 and "pulse" in done.stdout and "*" in done.stdout
