"""Lines of the interactive mode to commands, settings and completions."""

import pytest

from tts_cli.engine import SpeechRequest
from tts_cli.errors import UsageError
from tts_cli.repl_commands import (
    COMMANDS,
    SETTINGS,
    Command,
    Settings,
    change,
    completions,
    help_lines,
    parse,
    show,
    wants_file,
)

PLAIN = Settings(SpeechRequest(""))


@pytest.mark.parametrize("line, meant", [
    ("", None), ("  \t", None), ("Hello", "Hello"), (" /etc is a folder", " /etc is a folder"),
    ("/help", Command("help")), ("/voice  my clip.wav ", Command("voice", "my clip.wav")), ("/set", Command("set")),
    ("/set temp 0.5", Command("set", "temp 0.5")), ("/quit\n", Command("quit")),
    ("/voice a\nand a second line", "/voice a\nand a second line"), ("first\n/quit", "first\n/quit"),
])
def test_lines(line, meant):
    assert parse(line) == meant


@pytest.mark.parametrize("line, words", [
    ("/frob", "/frob is not a command"), ("/", "/ is not a command"), ("/Help", "/Help is not"),
    ("/voice", "/voice needs NAME|MIX|FILE|none"), ("/again twice", "/again takes nothing"), ("//x", "not a command"),
])
def test_refusals(line, words):
    with pytest.raises(UsageError) as refused:
        parse(line)
    assert words in str(refused.value)


def test_an_unknown_command_is_answered_with_the_list():
    with pytest.raises(UsageError) as refused:
        parse("/frob")
    assert all(f"/{name}" in str(refused.value) for name in COMMANDS)


def test_help_names_every_command_and_setting():
    text = "\n".join(help_lines())
    assert all(f"/{name}" in text for name in COMMANDS) and all(key in text for key in SETTINGS)


@pytest.mark.parametrize("key, value, shown", [
    ("temp", "0.5", "0.5"), ("top-k", "7", "7"), ("greedy", "ON", "on"), ("seed", "42", "42"),
    ("seed", "random", "random"), ("chunk-frames", "1,2", "1,2"), ("max-chars", "100", "100"),
    ("gap", "0", "0.0"), ("lang", "de", "de"),
    ("text-mode", "full", "full"), ("max-frames", "5", "5"),
])
def test_settings_change_and_go_back(key, value, shown):
    changed = change(PLAIN, key, value)
    assert show(changed)[key] == shown
    assert change(changed, key, "default") == PLAIN


@pytest.mark.parametrize("key, value, words", [
    ("frob", "1", "'frob' is not a setting"), ("temp", "hot", "temp: 'hot' is not a number"), ("temp", "-1", "temp: "),
    ("temp", "nan", "temp: "), ("top-k", "1.5", "whole number"), ("greedy", "maybe", "on or off"),
    ("seed", "-1", "seed: "), ("chunk-frames", "0", "chunk-frames: "), ("chunk-frames", "a", "numbers"),
    ("max-chars", "1", "max-chars: "),
    ("gap", "-1", "gap: "), ("gap", "nan", "gap: "), ("text-mode", "x", "text-mode: "),
])
def test_values_that_do_not_fit(key, value, words):
    with pytest.raises(UsageError) as refused:
        change(PLAIN, key, value)
    assert words in str(refused.value)


@pytest.mark.parametrize("text, length, words", [
    ("Hello", 0, []), ("/s", 2, ["/seed", "/set", "/save", "/stop", "/stats"]), ("/lang g", 1, ["german"]),
    ("/lang ", 0, ["auto", "german", "english"]), ("/voice an", 2, ["Anna"]), ("/set gre", 3, ["greedy"]),
    ("/set greedy o", 1, ["on", "off"]), ("/seed r", 1, ["random"]),
    ("/set top-k ", 0, ["default"]), ("/save x", 1, []),
])
def test_completions(text, length, words):
    assert completions(text, languages=["german", "english"], voices=["Anna"]) == (length, words)


def test_files_are_completed_where_they_belong():
    assert wants_file("/save ou") == "ou" and wants_file("/voice ") == "" and wants_file("/lang x") is None
