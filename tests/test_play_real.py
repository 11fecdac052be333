"""Real sound: PortAudio plays into a PulseAudio null sink and the sink's monitor is recorded."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pulse import RATE, PulseServer, compare, need_sound

ROOT = Path(__file__).parent.parent

PLAY = """
import sys, time
import numpy as np
from tts_cli.audio.play import DeviceLost, Player

samples = np.load(sys.argv[1])
with Player(int(sys.argv[2]), sys.argv[3]) as player:
    for i in range(0, len(samples), 1920):
        player.write(samples[i:i + 1920])
    {then}
print(player.device_rate, player.underruns, f"{{player.played_seconds:.6f}}")
"""


@pytest.fixture(scope="module")
def server():
    need_sound()
    with PulseServer() as server:
        yield server


@pytest.fixture
def voice(tmp_path):
    """(path, samples): two seconds that never repeat, a little like speech, with a pause of 0.3 s."""
    rng = np.random.default_rng(3)
    t = np.arange(2 * RATE) / RATE
    pitch = np.cumsum(120 + 30 * np.sin(2 * np.pi * 1.3 * t)) / RATE
    samples = sum(np.sin(2 * np.pi * k * pitch) / k for k in range(1, 12)) * (0.6 + 0.4 * np.sin(2 * np.pi * 4 * t))
    samples = 0.2 * samples + 0.02 * rng.standard_normal(len(t))
    samples[RATE:RATE + round(0.3 * RATE)] = 0
    path = tmp_path / "voice.npy"
    np.save(path, samples.astype(np.float32))
    return path, samples


def start(server, path, rate=RATE, device="pulse", then="player.drain()"):
    return subprocess.Popen(
        [sys.executable, "-c", PLAY.format(then=then), str(path), str(rate), device], cwd=ROOT, env=server.environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out.split()


@pytest.mark.parametrize("device", ["pulse", "defau"])
def test_what_is_played_is_what_was_written(server, voice, device):
    path, samples = voice
    takes = []
    while len(takes) < 3:  # a real-time test: a machine that is busy elsewhere for 100 ms spoils a take, never three
        with server.recording() as take:
            rate, underruns, seconds = finish(start(server, path, device=device))
        assert (int(rate), float(seconds)) == (RATE, 2.0)
        correlation, gap = compare(take.samples(), samples)
        takes.append(f"correlation {correlation:.4f}, gap {gap:.3f} s, {underruns} underruns")
        if correlation >= 0.99 and gap <= 0.02:
            return
    pytest.fail("; ".join(takes))


def test_stopping_cuts_the_sound(server, voice):
    path, samples = voice
    with server.recording() as take:
        finish(start(server, path, then="time.sleep(0.5); player.stop(); time.sleep(0.5)"))
    heard = np.flatnonzero(np.abs(take.samples()) > 1e-3)
    assert 0 < heard[-1] - heard[0] < 1.5 * RATE
    assert compare(take.samples(), samples)[0] < 0.95  # the comparison notices


def test_a_sound_server_that_dies_is_a_lost_device(voice):
    need_sound()
    path, _ = voice
    then = """
    print("playing", flush=True)
    try:
        while True:
            player.write(samples)
            time.sleep(0.1)
    except DeviceLost as error:
        print(error)
"""
    with PulseServer() as server:
        process = start(server, path, then=then)
        assert process.stdout.readline() == "playing\n"
        server.kill()
        assert "stopped working" in " ".join(finish(process))


def test_the_comparison_finds_cuts_and_gaps(voice):
    _, samples = voice
    lead = np.concatenate([np.zeros(5000), samples, np.zeros(300)])
    assert compare(lead, samples) == (pytest.approx(1.0), 0.0)
    assert compare(0.5 * lead, samples)[0] == pytest.approx(1.0)
    hole = lead.copy()
    hole[20000:20000 + round(0.03 * RATE)] = 0
    assert compare(hole, samples)[1] == pytest.approx(0.03, abs=0.001)
    shifted = np.insert(lead, 20000, np.zeros(round(0.03 * RATE)))
    assert compare(shifted, samples)[0] < 0.9
    cut = lead[:5000 + round(1.95 * RATE)]
    assert compare(cut, samples)[1] == pytest.approx(0.05, abs=0.001)
