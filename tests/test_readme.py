"""The README's commands run as they stand there, in an empty folder with tiny models under the names it uses."""

import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pexpect
import pytest
import soundfile
from cli_tools import tts
from fake_sound import write_module
from test_hub import Hub

from tts_cli.qwen3tts.convert import convert
from tts_cli.repl_commands import COMMANDS as COMMANDS_OF_THE_SESSION
from tts_cli.voices import Voice, save_voice

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]
INTERACTIVE = [line for line in COMMANDS if re.match(r"tts repl|tts -m \S+ -mm \S+$", line)]
INSTALLS = [line for line in COMMANDS if line.startswith("pip ")]
SERVE, *REQUESTS = [line for line in COMMANDS if line.startswith(("tts serve ", "curl "))]
PROGRAM = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
ADDRESS = "http://127.0.0.1:8080"


def test_ci_runs_exactly_the_commands_of_the_first_screen():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert [line.removesuffix(" || exit 1") for line in script if line.endswith("|| exit 1")] == INSTALLS
    assert len(INSTALLS) == 2 and INSTALLS[1].endswith("&& pytest")
    assert README.index(INSTALLS[1]) < 1500  # the first screen


@pytest.fixture(scope="module")
def sandbox(checkpoint, tmp_path_factory):
    """(folder, environment) with everything the README names."""
    folder = tmp_path_factory.mktemp("readme")
    for name in ("samples", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    pair = convert(checkpoint, tmp_path_factory.mktemp("pair"), "f32")  # with the encoder that --ref-text needs
    for path, name in zip(pair, ("talker.gguf", "mmproj.gguf"), strict=True):
        shutil.copy(path, folder / name)
    shutil.copytree(checkpoint, folder / "Qwen3-TTS-12Hz-0.6B-Base")
    soundfile.write(folder / "ref.wav", np.random.default_rng(0).uniform(-0.3, 0.3, 44100), 44100)
    (folder / "voice.toml").write_text(re.search(r"```toml\n(.*?)```", README, re.DOTALL)[1], encoding="utf-8")
    programs = folder / "bin"
    programs.mkdir()
    for name, words in (("tts", "-m tts_cli"), ("python", "")):
        if os.name == "nt":
            (programs / f"{name}.cmd").write_text(f'@"{sys.executable}" {words} %*\n')
        else:
            (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
            (programs / name).chmod(0o755)
    with Hub() as hub:
        hub.repos["ggml-org/Qwen3-TTS-12Hz-1.7B-Base-GGUF"] = {
            "Qwen3-TTS-Q8_0.gguf": pair[0].read_bytes(), "mmproj-Qwen3-TTS-Q8_0.gguf": pair[1].read_bytes()}
        threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        sound = write_module(folder / "sound", "(fake_sound.device('Speakers'), fake_sound.device('Headset'))")
        yield folder, {
            **os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "XDG_STATE_HOME": str(folder / "state"),
            "XDG_DATA_HOME": str(folder / "data"),
            "PATH": os.pathsep.join([str(programs), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join([str(sound), str(ROOT)]),
            "OMP_NUM_THREADS": "1", "HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "cache"), "NO_PROXY": "*",
            "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        hub.shutdown()


@pytest.mark.parametrize("line", [line.removeprefix('pip install ".[builtin]" && ') for line in COMMANDS
                                  if line not in (INSTALLS[1], SERVE, *INTERACTIVE, *REQUESTS)])
def test_command(sandbox, line):
    if line.startswith("tts codec decode"):
        np.save(sandbox[0] / "codes.npy", np.ones((3, 16), np.int32))
    folder, environment = sandbox
    if "anna" in line:  # each line by itself: tests run in any order and on several workers
        saved = folder / "data" / "tts-cli" / "voices" / "anna.safetensors"
        saved.parent.mkdir(parents=True, exist_ok=True)
        for path in (saved, folder / "anna.safetensors"):
            path.unlink(missing_ok=True)
        if "voices save" not in line:
            save_voice(Voice("anna", np.ones(64, np.float32)), saved)
    written = re.search(r"(?:-o|>|--output-dir) ([^-\s]\S*)$|-o (\S+) --(?:type|dump-codes)", line)
    outputs = [folder / name for name in written.groups() if name] if written else []
    for path in outputs:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    done = subprocess.run(line, shell=True, cwd=folder, env=environment, capture_output=True, timeout=120)
    # 3 is in order where no seed is given: random weights need not find an end within the budget.
    speaks = "-o" in line or "-p " in line or "--lines" in line
    assert done.returncode in ((0, 3) if speaks and "-s 1" not in line else (0,)), done.stderr.decode()
    assert outputs or re.match(r"tts (inspect|bench|voices|config|--phonemes|--list-devices)|.*-p \S.*\"$|"
                               r".*--output-device|.*--lines|.*--explain", line)
    for path in outputs:
        assert path.exists()
        if path.suffix in (".wav", ".flac", ".mp3"):
            assert len(soundfile.read(path)[0]) > 0


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
@pytest.mark.parametrize("line", INTERACTIVE)
def test_interactive_command(sandbox, line):
    folder, environment = sandbox
    child = pexpect.spawn("/bin/sh", ["-c", line], cwd=folder, env=environment, timeout=60, encoding="utf-8")
    child.expect("tts>")
    child.sendline("/set max-frames 2")
    child.sendline("Good morning.")
    child.expect("0.16 s of audio")
    for command in ("/voice ref.wav", "/save morning.flac", "/lang english", "/temp 0.5", "/again", "/info", "/quit"):
        child.sendline(command)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


@pytest.mark.skipif(os.name != "posix", reason="ends with a signal")
def test_the_server_answers_the_requests(sandbox):
    folder, environment = sandbox
    server = subprocess.Popen(f"exec {SERVE} --port 0", shell=True, cwd=folder, env=environment, text=True,
                              stderr=subprocess.PIPE)
    try:
        address = next(found[1] for line in server.stderr if (found := re.search(r"serving on (\S+)", line)))
        threading.Thread(target=server.stderr.read, daemon=True).start()
        for line in REQUESTS:
            assert ADDRESS in line
            subprocess.run(line.replace(ADDRESS, address), shell=True, cwd=folder, check=True, timeout=120)
            path = folder / re.search(r"(?:-o|>) (\S+)$", line)[1]
            assert len(soundfile.read(path)[0]) > 0
            path.unlink()
        program = PROGRAM.replace(ADDRESS, address)
        assert program != PROGRAM
        subprocess.run([sys.executable, "-c", program], cwd=folder, env=environment, check=True, timeout=120)
        assert len(soundfile.read(folder / "morning.mp3")[0]) > 0
    finally:
        server.terminate()
    assert server.wait(60) == 0


def test_every_command_of_the_interactive_mode_is_in_the_table():
    assert all(re.search(rf"\| .*`/{name}[ `].*\|", README) for name in COMMANDS_OF_THE_SESSION)


def test_every_option_is_in_the_table():
    help_text = tts("--help", "-h").out.decode()
    for flag in set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", help_text)) - {"--help", "-h"}:
        assert f"`{flag}" in README, flag
