"""The interactive mode on a pseudo-terminal, as a person meets it."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest
import soundfile
from fake_sound import write_module

import tts_cli

ROOT = Path(tts_cli.__file__).parent.parent
pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
SPOKEN = r"s of audio in [\d.]+ s"
CTRL_C = "\x03"


@pytest.fixture
def fake_device(tmp_path):
    """A folder whose sounddevice module plays into nothing."""
    return write_module(tmp_path / "fake")


@pytest.fixture
def terminal(tmp_path, fake_device):
    """Start `tts` with arguments on a terminal; wait for its prompt."""
    started = []

    def start(*arguments, prompt=True):
        environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join([str(fake_device), str(ROOT)]), "OMP_NUM_THREADS": "1",
            "XDG_STATE_HOME": str(tmp_path / "state"), "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
        child = pexpect.spawn(sys.executable, ["-m", "tts_cli", *map(str, arguments)], env=environment, timeout=60,
                              encoding="utf-8", dimensions=(40, 200))
        started.append(child)
        if prompt:
            child.expect("tts>")
        return child
    yield start
    for child in started:
        child.close(force=True)


def ends(child) -> int:
    child.expect(pexpect.EOF)
    child.wait()
    return child.exitstatus


def test_a_session(terminal, pair, tmp_path):
    child = terminal("-m", pair[0], "-n", "4", "-s", "1", "--dtype", "float32")
    child.sendline("Hello there")
    child.expect(SPOKEN)
    child.sendline("/frob")
    child.expect("/frob is not a command; there are /voice /lang")
    child.sendline(f"/save {tmp_path / 'a.wav'}")
    child.expect(r"a\.wav: 0\.32 s of audio")
    child.sendline("/lang klingon")
    child.expect("error: .*klingon")
    child.sendline("/again")
    child.sendline("/stats")
    child.expect("session: 1 utterances")
    child.send("\x1b[200~One line,\nand another.\x1b[201~\r")  # a bracketed paste is one text
    child.expect(SPOKEN)
    child.sendline("/stats")
    child.expect("session: 2 utterances")
    child.sendline("/set max-frames 1")
    child.expect("max-frames 1\r")
    child.send("\x1b[200~" + "word " * 2000 + "\x1b[201~\r")  # 10 KB in one line
    child.expect("limit, seed 1")
    child.sendline("/quit")
    assert ends(child) == 0
    assert soundfile.info(tmp_path / "a.wav").frames == 4 * 1920
    history = tmp_path / "state" / "tts-cli" / "history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert "+Hello there" in history.read_text(encoding="utf-8")


def test_a_session_with_the_model_of_the_package(terminal, tmp_path):
    """Real speech, which ends by itself; the same line with the same seed is the same take."""
    child = terminal("repl", "-m", "nano", "-s", "1")
    for name in ("a", "b"):
        child.sendline("The train leaves at seven.")
        child.expect(SPOKEN + ".*finish eos, seed 1")
        child.sendline(f"/save {tmp_path / name}.wav")
        child.expect(f"{name}.wav: ")
    child.sendline("/again")
    child.sendline("Good morning.")
    child.expect(SPOKEN + ".*finish eos")
    child.sendline("/voices")
    child.expect(r"none(?! \(/voice)[^(]*tts>")  # and no word of cloning
    child.sendline("/voice bob")
    child.expect("error: .*'bob' is neither a file nor a known voice")
    child.sendline("/quit")
    assert ends(child) == 0
    assert (tmp_path / "a.wav").read_bytes() == (tmp_path / "b.wav").read_bytes()
    assert 1.5 < soundfile.info(tmp_path / "a.wav").duration < 4


def test_ctrl_c_stops_the_utterance_and_then_leaves(terminal, endless, tmp_path):
    child = terminal("repl", "-m", endless[0], "--greedy", "-n", "9999")
    child.sendline("Hello there")
    child.sendline("/stats")
    child.sendline("Queued")
    while child.expect([r"speaking: [\d.]+ s so far", "nothing was spoken yet"]):
        child.sendline("/stats")
    child.send(CTRL_C)
    child.expect("stopped")
    child.expect("finish cancelled")
    child.sendline(f"/save {tmp_path / 'a.wav'}")
    child.expect("as far as it was made")
    child.sendline("/again")
    child.sendline("/quit")
    assert ends(child) == 0 and soundfile.info(tmp_path / "a.wav").frames > 0


def test_ctrl_c_at_an_empty_prompt_twice_leaves(terminal, pair):
    child = terminal("-m", pair[0])
    child.send("half a line" + CTRL_C)
    child.expect("tts>")
    child.send(CTRL_C)
    child.expect("once more")
    child.send(CTRL_C)
    assert ends(child) == 0


def test_eof_leaves_while_the_model_is_still_being_read(terminal, pair):
    child = terminal("-m", pair[0])
    child.sendeof()
    assert ends(child) == 0


def test_a_model_that_cannot_be_read_ends_the_session(terminal, tmp_path, pair):
    (tmp_path / "bad.gguf").write_text("<html>")
    child = terminal("-m", tmp_path / "bad.gguf", "-mm", pair[1])
    child.expect("tts: error: .*bad.gguf.*not a GGUF")
    assert ends(child) == 1
    child = terminal("-m", tmp_path / "missing.gguf", prompt=False)
    child.expect("tts: error: .*missing.gguf: no such file")
    assert ends(child) == 2


def test_the_prompt_needs_neither_torch_nor_numpy():
    program = ("import sys\nimport tts_cli.cli.main, tts_cli.cli.prompt\n"
               "sys.exit(' '.join(sys.modules.keys() & {'torch', 'numpy', 'sounddevice', 'gguf'}) or None)")
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True).stderr == b""


def test_without_a_terminal_it_says_what_to_use(pair):
    done = subprocess.run([sys.executable, "-m", "tts_cli", "repl", "-m", str(pair[0])], cwd=ROOT, input=b"Hi\n",
                          capture_output=True)
    assert done.returncode == 2 and re.fullmatch(rb"tts: error: .*needs a terminal.*--lines.*\r?\n", done.stderr)
