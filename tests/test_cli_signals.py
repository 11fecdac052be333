"""How a run ends: signals at any moment, closed or full standard streams."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pexpect
import pytest

import tts_cli

ROOT = Path(tts_cli.__file__).parent.parent
TTS = [sys.executable, "-m", "tts_cli"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals and descriptors of POSIX")


@pytest.fixture
def out(tmp_path):
    """An empty folder for what the runs write."""
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def shell(line, *arguments):
    """Run a line of shell; "$@" in it is `tts` with the arguments."""
    return subprocess.run(["/bin/sh", "-c", line, "sh", *TTS, *map(str, arguments)], env=ENVIRONMENT,
                          capture_output=True, timeout=120)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_signal_leaves_no_part_of_a_file(endless, out, name):
    process = subprocess.Popen(
        [*TTS, "-m", endless[0], "--no-voice", "-p", "Hi", "--greedy", "-n", "9999", "-o", out / "a.wav",
         "--dump-codes", out / "a.npy"], env=ENVIRONMENT, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not any(path.stat().st_size > 44 for path in out.glob(".tts-*.part")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(getattr(signal, name))
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + getattr(signal, name)
    assert said == (b"tts: interrupted\n" if name == "SIGINT" else b"") and not list(out.iterdir())


def test_an_ignored_hangup_stays_ignored(endless, out):
    done = shell('trap "" HUP; "$@"', "-m", endless[0], "--no-voice", "-p", "Hi", "--greedy", "-n", "2", "-o",
                 out / "a.wav")
    assert done.returncode == 0, done.stderr
    program = "import signal\nfrom tts_cli.cli.process import signals_unwind\nwith signals_unwind():\n" \
              "    signal.raise_signal(signal.SIGHUP)\n    signal.raise_signal(signal.SIGTERM)\n"
    done = subprocess.run(["/bin/sh", "-c", 'trap "" HUP; exec "$@"', "sh", sys.executable, "-c", program],
                          env=ENVIRONMENT, timeout=60)
    assert done.returncode == 128 + signal.SIGTERM


def test_ctrl_c_while_the_program_is_read(tmp_path):
    """A package that is imported early tells when it is; then comes Ctrl-C, and it swallows exceptions."""
    (tmp_path / "typer.py").write_text(
        "import os, time\nos.write(1, b'x')\ntry:\n    time.sleep(60)\nexcept BaseException:\n    pass\n")
    environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    process = subprocess.Popen([*TTS, "--help"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.read(1) == b"x"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30) == (b"", b"tts: interrupted\n") and process.returncode == 130


def test_closed_stderr_keeps_messages_out_of_the_audio(pair, out):
    arguments = ["-m", pair[0], "--no-voice", "-p", "Hi", "-s", "1", "-n", "3", "-v"]
    done = shell(f'"$@" 2>&- > "{out}/a.wav"', *arguments, "-o", "-")
    assert done.returncode == 0
    shell(f'"$@" > "{out}/b.wav"', *arguments, "-o", "-")
    assert (out / "a.wav").read_bytes() == (out / "b.wav").read_bytes() != b""
    assert shell('"$@" 2>&-', *arguments, "-o", out / "c.wav").returncode == 0
    assert (out / "c.wav").stat().st_size == 44 + 3 * 2 * 1920
    assert shell('"$@" 2>&-', "--nonsense").returncode == 2


def test_closed_stdout_and_stdin(pair, out):
    arguments = ["-m", pair[0], "--no-voice", "-p", "Hi", "-s", "1", "-n", "3"]
    done = shell('"$@" <&- >&-', *arguments, "-o", out / "a.wav")
    assert done.returncode == 0 and (out / "a.wav").stat().st_size == 44 + 3 * 2 * 1920, done.stderr
    done = shell('"$@" >&-', *arguments, "-o", "-")
    assert done.returncode == 1 and b"no standard output" in done.stderr
    done = shell('"$@" <&-', "-m", pair[0], "--no-voice", "-o", out / "b.wav")
    assert done.returncode == 2 and b"no text" in done.stderr


def test_a_message_that_nobody_takes_does_not_spoil_the_file(pair, out):
    """stderr is a pipe whose reader went away: writing fails, as it does on a full disk."""
    read, write = os.pipe()
    os.close(read)
    process = subprocess.Popen([*TTS, "-m", pair[0], "--no-voice", "-p", "Hi", "-s", "1", "-n", "3", "-v", "-o",
                                out / "a.wav"],
                               env=ENVIRONMENT, stderr=write)
    os.close(write)
    assert process.wait(timeout=120) == 0 and (out / "a.wav").stat().st_size == 44 + 3 * 2 * 1920


@pytest.mark.parametrize("size", [(24, 80), (0, 0)])
def test_a_terminal_shows_the_progress(pair, out, size):
    child = pexpect.spawn(TTS[0], [*TTS[1:], "-m", str(pair[0]), "-p", "Hi", "-s", "1", "-n", "3", "-o",
                                   str(out / "a.wav")], dimensions=size, env=ENVIRONMENT, timeout=60)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0 and b"\r0.0 s of audio in" in child.before


def test_signals_outside_the_main_thread_are_left_alone():
    from tts_cli.cli.process import signals_unwind

    before, seen = signal.getsignal(signal.SIGTERM), []

    def run():
        with signals_unwind():
            seen.append(signal.getsignal(signal.SIGTERM))
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [before]


def test_an_output_may_not_be_what_standard_input_reads(pair, out):
    (out / "in.wav").write_text("A text.", encoding="utf-8")
    for arguments in (["-m", pair[0], "--no-voice"], ["-m", pair[0], "--no-voice", "--lines"]):
        done = shell(f'"$@" < "{out}/in.wav"', *arguments, "-o", out / "in.wav")
        assert done.returncode == 2 and b"input" in done.stderr
    assert (out / "in.wav").read_text(encoding="utf-8") == "A text."


def test_a_config_may_come_through_a_pipe(pair, out):
    os.mkfifo(out / "pipe")
    line = f'echo "temp = 1{"0" * 5}" > "{out}/pipe" & "$@"'
    done = shell(line, "--config", out / "pipe", "-m", pair[0], "--no-voice", "-p", "a", "-o", out / "a.wav")
    assert done.returncode == 2 and b"pipe: temp: 100000.0 is too large" in done.stderr
