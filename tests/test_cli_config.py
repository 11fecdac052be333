"""`tts config`: what it keeps can be used; what was written by hand is refused by the file's name and can be mended."""

import pytest
from cli_tools import tts

from tts_cli.settings import settings_file


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    """Writes the file of kept options; with nothing it is not there."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def keep(content: str) -> None:
        settings_file().parent.mkdir(parents=True, exist_ok=True)
        settings_file().write_text(content, encoding="utf-8")
    return keep


@pytest.mark.parametrize("key, value, words", [
    ("threads", "0", "1 to 1024"), ("max-chars", "5", "the least is 40"), ("gap", "99", "from 0 to 30"),
    ("device", "foo", "auto, cpu, cuda"), ("dtype", "int4", "float32, bfloat16"),
    ("chunk-frames", "1,a", "whole numbers"), ("chunk-frames", "0", "the least is 1"),
    ("text-mode", "wide", "full, streaming"), ("speed", "9", "the most is 4"),
    ("voice", "bobby", "bobby"), ("voice", "no/such.pt", "no such file"),
    ("temp", "nan", "finite"), ("seed", "1.5", "a whole number"), ("greedy", "maybe", "on or off")])
def test_what_no_run_could_use_is_not_kept(key, value, words):
    run = tts("config", "set", key, value)
    assert run.code == 2 and key in run.error and words in run.error
    assert not settings_file().exists()


@pytest.mark.parametrize("content, words", [
    ("threads = 0", "threads: 0 is out of range"), ("gap = 99", "gap: 99"), ("max-chars = 5", "max-chars: 5"),
    ("speed = 9", "speed: 9"), ("voice = 'nobody'", "voice: "), ("foo = 1", "unknown key 'foo'"), ("[[[", "not a TOML"),
    ("temp = 'x'", "temp = 'x' is not a number"), ("device = 'abacus'", "device: 'abacus'")])
def test_a_kept_value_that_cannot_be_used_is_told_by_its_file(kept, tmp_path, content, words):
    kept(content)
    run = tts("-p", "Hello.", "-o", tmp_path / "a.wav")
    assert run.code == 2 and str(settings_file()) in run.error and words in run.error
    assert not (tmp_path / "a.wav").exists()


@pytest.mark.parametrize("content", ["threads = 0", "foo = 1", "temp = 'x'", "model = 3"])
def test_a_kept_value_does_not_keep_one_from_taking_it_back(kept, content):
    kept(content + "\nlang = 'en'\n")
    key = content.split()[0]
    assert tts("config", "path").out.decode().strip() == str(settings_file())
    assert key in tts("config", "list").out.decode()
    assert tts("config", "unset", key).code == 0
    assert tts("config", "list").out == b"lang = en\n"


def test_a_value_that_was_typed_is_not_the_files(kept, tmp_path):
    kept("gap = 99\nthreads = 2")
    for typed in (["--gap", "98"], ["--gap=98"]):
        assert tts("-p", "Hello.", "-o", tmp_path / "a.wav", *typed).error.startswith("--gap: 98")
    assert tts("-p", "Hello.", "-o", tmp_path / "a.wav", "--gap", "1", "-t", "0").error.startswith("--threads: 0")
    assert tts("config", "set", "threads", "0").error.startswith("--threads: 0")


def test_a_verb_is_told_of_what_is_kept_too(kept, pair):
    kept("threads = 0")
    run = tts("bench", "-m", pair[0], "--frames", "2", "--no-cold")
    assert run.code == 2 and run.error.startswith(f"{settings_file()}: threads: 0")
    assert tts("inspect", "nano").code == 0  # has no use for it
