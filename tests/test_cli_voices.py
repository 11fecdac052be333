"""Voices on the command line: in-context clones, named speakers, saved voices, and the prompt they make."""

import numpy as np
import pytest
import soundfile
from cli_tools import tts
from clips import speech_like
from factory import tiny_pair

from tts_cli.qwen3tts.convert import convert

WORDS = "The quick brown fox jumps over the lazy dog and runs."


@pytest.fixture(scope="module")
def base(checkpoint, tmp_path_factory):
    """A Base pair with the codec encoder, as arguments."""
    talker, mmproj = convert(checkpoint, tmp_path_factory.mktemp("base"), "f32")
    return ["-m", talker, "-mm", mmproj, "--dtype", "float32"]


@pytest.fixture
def clip(tmp_path):
    path = tmp_path / "clip.wav"
    soundfile.write(path, speech_like(24000, 3.0), 24000)
    return path


@pytest.fixture(autouse=True)
def own_voices(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def codes(tmp_path, *arguments):
    path = tmp_path / "codes.npy"
    run = tts(*arguments, "-p", "Hello there.", "-s", "1", "-n", "4", "-o", tmp_path / "a.wav", "--dump-codes", path)
    assert run.code == 0, run.err
    return np.load(path).tolist(), run.err


def test_a_base_model_speaks_like_the_reference_clip_of_the_project(base, tmp_path):
    spoken, err = codes(tmp_path, *base)
    chosen, silent = codes(tmp_path, *base, "--no-voice")
    assert err.count("built-in reference voice") == 1 and "--no-voice" in err and "reference" not in silent
    assert spoken != chosen
    assert codes(tmp_path, *base)[0] == spoken


def test_a_transcript_clones_in_context(base, clip, tmp_path):
    sound, _ = codes(tmp_path, *base, "--speaker-file", clip)
    context, _ = codes(tmp_path, *base, "--speaker-file", clip, "--ref-text", WORDS)
    (tmp_path / "ref.txt").write_text(WORDS + "\n", encoding="utf-8")
    from_file, _ = codes(tmp_path, *base, "--speaker-file", clip, "--ref-text-file", tmp_path / "ref.txt")
    trimmed, _ = codes(tmp_path, *base, "--speaker-file", clip, "--ref-text", WORDS, "--trim-ref")
    assert context == from_file != sound and trimmed != context


def test_a_saved_voice_speaks_like_its_clip(base, clip, tmp_path):
    for name, words in (("anna", []), ("anna in context", ["--ref-text", WORDS])):
        assert tts("voices", "save", name, *base[:4], "--speaker-file", clip, *words).code == 0
        assert codes(tmp_path, *base, "--voice", name)[0] == codes(tmp_path, *base, "--speaker-file", clip, *words)[0]
    listed = tts("voices", "list", *base[:4])
    assert [line.split("  ")[0] for line in listed.out.decode().splitlines()] == ["anna", "anna in context"]
    assert b"clip.wav" in tts("voices", "info", "anna", *base[:4]).out
    assert "already" in tts("voices", "save", "anna", *base[:4], "--speaker-file", clip).error
    file = tmp_path / "out.safetensors"
    assert tts("voices", "export", "anna", file).code == 0
    assert tts("voices", "remove", "anna").code == tts("voices", "rename", "anna in context", "ben").code == 0
    assert tts("voices", "import", file).out == b"out\n"
    direct = codes(tmp_path, *base, "--voice", file)[0]
    assert direct == codes(tmp_path, *base, "--voice", "out")[0] == codes(tmp_path, *base, "--speaker-file", clip)[0]
    assert "no saved voice 'anna'; saved are ben, out" in tts(*base, "-p", "x", "--voice", "anna", "-o", "-").error


@pytest.mark.parametrize("words, message", [
    (["--ref-text", "Hi."], "does it say just what the clip says"), (["--ref-text", WORDS], None)])
def test_an_implausible_transcript_is_told(base, clip, tmp_path, words, message):
    err = codes(tmp_path, *base, "--speaker-file", clip, *words)[1]
    assert ("does it say" in err) is (message is not None)


@pytest.mark.parametrize("kind, arguments, message", [
    ("base", ["--instruct", "calm"], "a Base checkpoint does not follow instructions"),
    ("base", ["--speaker", "ryan"], "no saved voice 'ryan'"),
    ("base", ["--ref-text", "x"], "go with --speaker-file"),
    ("custom_voice", ["--speaker-file", "{clip}"], "use a Base checkpoint"),
    ("custom_voice", ["--speaker", "nobody"], "not a speaker of this model; it has aiden, dylan"),
    ("voice_design", ["--speaker", "ryan"], "only CustomVoice checkpoints have"),
    ("voice_design", ["--speaker-file", "{clip}"], "use a Base checkpoint"),
    ("base", ["--speaker-file", "{clip}", "--ref-text", "Hello."], "no codec encoder")])
def test_what_a_checkpoint_cannot_do_names_what_can(tmp_path, clip, kind, arguments, message):
    talker, mmproj = tiny_pair(tmp_path / kind, variant=kind)
    given = [str(a).format(clip=clip) for a in arguments]
    run = tts("-m", talker, "-mm", mmproj, "-p", "Hello.", "-o", tmp_path / "a.wav", *given)
    assert run.code == 2 and message in run.err.splitlines()[-1] and not (tmp_path / "a.wav").exists()


def test_named_speakers_and_instructions(tmp_path):
    talker, mmproj = tiny_pair(tmp_path / "custom", variant="custom_voice")
    custom = ["-m", talker, "-mm", mmproj, "--dtype", "float32"]
    takes = [codes(tmp_path, *custom, *more)[0] for more in (
        ["--speaker", "Ryan"], ["--voice", "ryan"], ["--speaker", "serena"],
        ["--speaker", "ryan", "--instruct", "Calm."])]
    assert takes[0] == takes[1] and len({str(take) for take in takes}) == 3
    assert b"ryan" in tts("voices", "list", *custom[:4]).out.splitlines()
    design, other = tiny_pair(tmp_path / "design", variant="voice_design")
    design = ["-m", design, "-mm", other, "--dtype", "float32"]
    assert codes(tmp_path, *design, "--instruct", "Deep.")[0] != codes(tmp_path, *design)[0]


def test_explain_prints_the_prompt_and_loads_nothing(base, clip, monkeypatch):
    monkeypatch.setattr("tts_cli.qwen3tts.engine.load_models", None)
    run = tts(*base, "-p", "Hello there", "--explain", "--lang", "en", "--speaker-file", clip, "--ref-text", WORDS)
    out = run.out.decode()
    assert run.code == 0 and "vector[64]" in out and "<|codec_language_english|>" in out and "frame 0" in out
    assert "layout: streaming" in out and "repeat-penalty 1.05" in out
    full = tts(*base, "-p", "Hello there", "--explain", "--text-mode", "full", "--no-voice").out.decode()
    assert "vector" not in full and "layout: full" in full
    assert "has none" in tts("-m", "builtin", "-p", "Hello", "--explain").error


def test_explain_shows_the_utterance_that_would_be_spoken(tmp_path):
    """Of a model that was trained on short ones: the first part of a longer text."""
    talker, mmproj = tiny_pair(tmp_path, talker_edits={"tts_cli.max_chars": 40})
    first, rest = "This one has about thirty letters.", "And here is some more of it."
    shown, alone, whole = (tts("-m", talker, "-mm", mmproj, "-p", text, "--explain", "--no-voice").out
                           for text in (f"{first} {rest}", first, rest))
    assert shown == alone != whole


def test_one_damaged_voice_does_not_hide_the_others(base, clip, tmp_path):
    assert tts("voices", "save", "anna", *base[:4], "--speaker-file", clip).code == 0
    (tmp_path / "data" / "tts-cli" / "voices" / "bad.safetensors").write_bytes(b"damaged")
    run = tts("voices", "list", *base[:4])
    assert run.code == 0 and run.out.split() == [b"anna", b"auto"] and "bad.safetensors" in run.err
    assert tts("voices", "remove", "bad").code == 0
    assert "anna" in tts("voices", "list").err  # the built-in model cannot speak with it, but it is there
    assert "saved voice" in tts("voices", "info", "anna").error


def test_words_the_voice_cannot_read_are_told(tmp_path):
    run = tts("-p", "Hello 你好 friend", "-s", "1", "-o", tmp_path / "a.wav")
    assert run.code == 0 and "你好" in run.err


def test_the_small_custom_voice_model_says_that_it_ignores_instructions(tmp_path):
    talker, mmproj = tiny_pair(tmp_path, variant="custom_voice", equal=True, extras=True)  # its size is 0.6B
    small = ["-m", talker, "-mm", mmproj, "--dtype", "float32", "--speaker", "ryan"]
    plain, _ = codes(tmp_path, *small)
    told, err = codes(tmp_path, *small, "--instruct", "Calm.")
    assert told == plain and "--instruct: no effect with this model" in err
