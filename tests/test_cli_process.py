"""`tts` as a process of its own: exit codes, binary pipes, signals, encodings, and a machine without PortAudio."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_sound import write_module

import tts_cli

ROOT = Path(tts_cli.__file__).parent.parent
TTS = [sys.executable, "-m", "tts_cli"]


# Makes a fake device tell on stderr when the module is imported and when the first sound is played.
TELLING = """
def turn(self, turn=fake_sound.FakeStream.turn):
    turn(self)
    if self.blocks[-1].any() and not hasattr(self, "told"):
        self.told = True
        print("sound", file=sys.stderr, flush=True)
fake_sound.FakeStream.turn = turn
print("device", file=sys.stderr, flush=True)
"""


def environment(**more):
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


def tts(*arguments, env=None, **more):
    return subprocess.run([*TTS, *map(str, arguments)], capture_output=True, env=env or environment(), timeout=120,
                          **more)


def test_exit_codes_and_streams(pair, tmp_path):
    done = tts("-m", pair[0], "--no-voice", "-p", "Hi", "-n", "2", "-o", tmp_path / "a.wav")
    assert done.returncode == 0 and done.stdout == b"" and (tmp_path / "a.wav").stat().st_size == 44 + 2 * 2 * 1920
    done = tts("-m", pair[0], "--no-voice", "-p", "Hi", "-o", tmp_path / "no" / "a.wav")
    assert done.returncode == 1 and done.stderr.startswith(b"tts: error: ") and done.stderr.count(b"\n") == 1
    assert tts("-p", "").returncode == 2


def test_a_piped_text_becomes_a_piped_wav(pair):
    done = tts("-m", pair[0], "--no-voice", "-n", "3", "-s", "1", "-o", "-", input="Grüße aus Köln\n".encode())
    assert done.returncode == 0 and done.stdout[:4] == b"RIFF" and len(done.stdout) == 44 + 3 * 2 * 1920


@pytest.mark.parametrize("locale", [
    {"PYTHONIOENCODING": "cp1252"}, {"PYTHONIOENCODING": "ascii"},
    {"LC_ALL": "C", "LANG": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
])
def test_text_is_utf8_whatever_the_locale(pair, tmp_path, locale):
    text = "Grüße, 早上好"
    (tmp_path / "t.txt").write_text(text, encoding="utf-8")
    (tmp_path / "out").mkdir()
    files = []
    for number, (arguments, stdin) in enumerate(((["-p", text], b""), (["-f", tmp_path / "t.txt"], b""),
                                                 ([], text.encode()))):
        files.append(tmp_path / "out" / f"{number}.wav")
        done = tts("-m", pair[0], "--no-voice", *arguments, "-s", "1", "-n", "8", "-o", files[-1], input=stdin,
                   env=environment(**locale))
        assert done.returncode == 0, done.stderr
    plain = tmp_path / "plain.wav"
    tts("-m", pair[0], "--no-voice", "-p", text, "-s", "1", "-n", "8", "-o", plain)
    assert {file.read_bytes() for file in files} == {plain.read_bytes()}


def test_a_message_that_the_locale_cannot_show_is_no_crash(tmp_path):
    done = tts("-m", tmp_path / "早.gguf", "-mm", "x", "-p", "a", "-o", tmp_path / "a.wav",
               env=environment(PYTHONIOENCODING="ascii"))
    assert done.returncode == 2 and b"Traceback" not in done.stderr and b".gguf" in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot send Ctrl-C to one process")
def test_ctrl_c_ends_with_130_and_no_file(endless, tmp_path):
    process = subprocess.Popen([*TTS, "-m", endless[0], "--no-voice", "-p", "Hi", "--greedy", "-n", "9999", "-o",
                                tmp_path / "a.wav"],
                               env=environment(), stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not any(path.stat().st_size > 44 for path in tmp_path.glob(".tts-*.part")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[1] == b"tts: interrupted\n"
    assert process.returncode == 130 and not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot send Ctrl-C to one process")
@pytest.mark.parametrize("moment", ["while torch is imported", "while it plays"])
def test_ctrl_c_stops_the_sound_and_the_run(endless, tmp_path, moment):
    folder = write_module(tmp_path / "fake", more=TELLING)
    (tmp_path / "out").mkdir()
    process = subprocess.Popen(
        [*TTS, "-m", endless[0], "--no-voice", "-p", "Hi", "--greedy", "-n", "9999", "--play", "-o",
         tmp_path / "out" / "a.wav"],
        env=environment(PYTHONPATH=os.pathsep.join([str(folder), str(ROOT)])), stderr=subprocess.PIPE)
    assert process.stderr.readline() == b"device\n"
    if moment == "while it plays":
        assert process.stderr.readline() == b"sound\n"
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)  # a second one must not break the cleaning up
    assert process.communicate(timeout=60)[1] == b"tts: interrupted\n"
    assert process.returncode == 130 and not list((tmp_path / "out").iterdir())


def test_a_closed_pipe_ends_quietly(endless):
    process = subprocess.Popen([*TTS, "-m", endless[0], "--no-voice", "-p", "Hi", "--greedy", "-n", "9999", "-o", "-"],
                               env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.read(4) == b"RIFF"
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 141


@pytest.mark.parametrize("arguments", [["--help"], ["inspect", "nano"], ["config", "path"],
                                       ["-m", "nano", "-p", "Hi", "--explain"]])
def test_a_listing_that_nobody_reads_ends_quietly_too(arguments):
    """As `tts --help | true`: the reader is gone before anything is written."""
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run([*TTS, *arguments], env=environment(), stdout=write, stderr=subprocess.PIPE)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_neither_help_nor_a_file_needs_portaudio(pair, tmp_path):
    (tmp_path / "sounddevice.py").write_text("raise OSError('PortAudio library not found')\n")
    env = environment(PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))
    assert tts("--help", env=env).returncode == 0
    assert tts("-m", pair[0], "--no-voice", "-p", "Hi", "-n", "2", "-o", tmp_path / "a.wav", env=env).returncode == 0
