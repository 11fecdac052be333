"""The command line with Kokoro: the built-in voice where no model is given, voices, phonemes, timestamps, settings."""

import json

import numpy as np
import pytest
import soundfile
from cli_tools import tts
from kokoro_folder import kokoro_folder, small_pack

from tts_cli.engine import Word
from tts_cli.kokoro import packages
from tts_cli.settings import settings_file
from tts_cli.subtitles import cues


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return kokoro_folder(tmp_path_factory.mktemp("kokoro model"))


@pytest.fixture(autouse=True)
def no_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))


def test_without_a_model_the_built_in_voice_speaks(kokoro, tmp_path):
    run = tts("-p", "Hello from the terminal.", "-s", "1", "-o", tmp_path / "hello.wav", terminal=True)
    assert run.code == 0, run.err
    samples, rate = soundfile.read(tmp_path / "hello.wav")
    assert rate == 24000 and 1.2 < len(samples) / rate < 3 and np.abs(samples).max() > 0.1
    first, *_ = run.err.splitlines()
    assert "built-in voice" in first and "-m TALKER.gguf" in first and "tts config set model" in first
    script = tts("-p", "Hello from the terminal.", "-s", "1", "-o", tmp_path / "again.wav")
    assert script.err.count("\n") == 1 and "built-in" not in script.err
    assert (tmp_path / "again.wav").read_bytes() == (tmp_path / "hello.wav").read_bytes()


def test_without_its_packages_it_says_how_to_get_them(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(packages, "find_spec", lambda name: None)
    run = tts("-m", "builtin", "-p", "Hello.", "-o", tmp_path / "a.wav")
    assert run.code == 2 and "pip install 'tts-cli[builtin]'" in run.error
    assert not (tmp_path / "a.wav").exists()


def test_voices_and_speed(model, tmp_path):
    def spoken(*options):
        run = tts("-m", model, "-p", "Hello there.", "-s", "1", "-q", "-o", tmp_path / "a.wav", *options)
        assert run.code == 0, run.err
        return (tmp_path / "a.wav").read_bytes()

    np.save(tmp_path / "own.npy", small_pack(5))
    plain = spoken()
    assert spoken("--voice", "af_tiny") == plain
    others = [spoken("--voice", voice) for voice in ("bm_small", "af_tiny:0.4,bm_small:0.6", str(tmp_path / "own.npy"))]
    assert len({plain, *others}) == 4
    assert len(spoken("--speed", "0.5")) > 1.4 * len(plain)


@pytest.mark.parametrize("options, words", [
    (["--voice", "af_nobody"], "--voice: 'af_nobody' is unknown; there are af_tiny, bm_small"),
    (["--voice", "af_tiny:x"], "--voice: 'af_tiny:x' is not a voice"),
    (["--voice", "none.pt"], "none.pt: no such file"),
    (["--speed", "9"], "--speed: 9.0 is too large"),
    (["--lang", "klingon"], "--lang: 'klingon' is not one of"),
    (["--speaker-file", "CLIP"], "cannot clone"),
    (["--voice", "af_tiny", "--no-voice"], "exclude each other"),
    (["--dump-codes", "CODES"], "--dump-codes: this model speaks without codes"),
    (["-mm", "x.gguf"], "needs no mmproj"),
])
def test_refusals(model, tmp_path, options, words):
    soundfile.write(tmp_path / "clip.wav", np.random.default_rng(0).normal(size=48000) * 0.1, 24000)
    files = {"CLIP": tmp_path / "clip.wav", "CODES": tmp_path / "codes.npy"}
    run = tts("-m", model, "-p", "Hello.", "-q", "-o", tmp_path / "a.wav", *[files.get(one, one) for one in options])
    assert run.code == 2 and words in run.error
    assert not (tmp_path / "a.wav").exists() and not (tmp_path / "codes.npy").exists()


def test_options_without_effect_are_named(model, tmp_path):
    run = tts("-m", model, "-p", "Hello.", "--temp", "0.5", "-n", "3", "-o", tmp_path / "a.wav")
    assert run.code == 0 and "warning: --temp, --max-frames: no effect" in run.err


def test_phonemes_printed_and_spoken(model, tmp_path):
    run = tts("-m", model, "--phonemes", "-p", "Hello there, [Kokoro](/kˈOkəɹO/).")
    assert (run.code, run.err) == (0, "")
    phonemes = run.out.decode().strip()
    assert phonemes.startswith("həlˈO ðˈɛɹ, kˈOkəɹO")
    assert tts("-m", model, "--phonemes", stdin="Hello there, [Kokoro](/kˈOkəɹO/).".encode()).out == run.out
    for name, options in (("a", ["-p", "Hello there, [Kokoro](/kˈOkəɹO/)."]),
                          ("b", ["--from-phonemes", "-p", phonemes])):
        assert tts("-m", model, "-s", "1", "-q", "-o", tmp_path / f"{name}.wav", *options).code == 0
    assert (tmp_path / "a.wav").read_bytes() == (tmp_path / "b.wav").read_bytes()
    odd = tts("-m", model, "--from-phonemes", "-p", "hɛl漢O", "-o", tmp_path / "c.wav")
    assert odd.code == 0 and "left out: 漢" in odd.err
    for options in (["-o", tmp_path / "d.wav"], ["--srt", tmp_path / "d.srt"], ["--from-phonemes"]):
        assert "only prints" in tts("-m", model, "--phonemes", "-p", "a", *options).error


def test_phonemes_are_not_for_qwen(pair):
    assert "Qwen3-TTS reads words" in tts("-m", pair[0], "--phonemes", "-p", "a").error


def test_timestamps_and_subtitles(model, tmp_path):
    text = "One two three, four five six seven eight nine ten. Eleven twelve."
    run = tts("-m", model, "-p", text, "-s", "1", "-o", tmp_path / "a.wav", "--timestamps", tmp_path / "a.json",
              "--srt", tmp_path / "a.srt", "--vtt", tmp_path / "a.vtt")
    assert run.code == 0, run.err
    found = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert [word["text"] for word in found["words"]] == text.split()
    assert [mark["text"] for mark in found["utterances"]] == [text]
    times = [word[key] for word in found["words"] for key in ("start", "end")]
    assert times == sorted(times) and times[0] > 0 and times[-1] <= soundfile.info(tmp_path / "a.wav").duration
    assert (tmp_path / "a.srt").read_text(encoding="utf-8").count("-->") == 2
    assert "Eleven twelve." in (tmp_path / "a.vtt").read_text(encoding="utf-8").splitlines()


def test_timestamps_of_a_model_that_knows_no_words(pair, tmp_path):
    run = tts("-m", pair[0], "-p", "Hello. You.", "-n", "5", "-s", "1", "-o", tmp_path / "a.wav",
              "--timestamps", tmp_path / "a.json")
    assert run.code == 0, run.err
    found = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert found["words"] == [] and len(found["utterances"]) == 1


def test_cues_end_with_sentences_silences_and_full_lines():
    def timed(text, pauses=()):
        at, words = 0.0, []
        for index, word in enumerate(text.split()):
            at += 2 if index in pauses else 0
            words.append(Word(at, at + 0.5, word))
            at += 0.6
        return words

    sentences = [cue.text for cue in cues(timed("Mr. Fox came. He left! Did he?"))]
    assert sentences == ["Mr. Fox came.", "He left!", "Did he?"]
    assert [cue.text for cue in cues(timed("one two three four", pauses=(2,)))] == ["one two", "three four"]
    long = cues(timed("word " * 12 + "clause, " + "word " * 30))
    assert long[0].text.endswith("clause,") and all(len(cue.text) <= 84 for cue in long)
    assert " ".join(cue.text for cue in long).split() == ("word " * 12 + "clause, " + "word " * 30).split()
    assert (long[1].start, cues([])) == (pytest.approx(13 * 0.6), [])


def test_lines(model, tmp_path):
    run = tts("--lines", "-m", model, "--output-dir", tmp_path / "out", stdin=b"One.\nTwo.\n")
    assert run.code == 0 and len(list((tmp_path / "out").iterdir())) == 2


# ---- tts voices -----------------------------------------------------------------------------------------------------


def test_voices_list_and_info(model, pair, kokoro):
    run = tts("voices", "list")
    lines = run.out.decode().splitlines()
    assert [line.split()[0] for line in lines] == ["af_heart", "am_michael", "bf_emma", "bm_george"]
    assert lines[0].endswith("(default)")
    found = json.loads(tts("voices", "list", "-m", model, "--json").out)
    assert [(one["name"], one["language"], one["sex"], one["default"]) for one in found] == [
        ("af_tiny", "American English", "female", True), ("bm_small", "British English", "male", False)]
    run = tts("voices", "info", "bm_small", "-m", model)
    assert run.code == 0 and "British English" in run.out.decode() and "bm_small.pt" in run.out.decode()
    assert "af_tiny, bm_small" in tts("voices", "info", "nobody", "-m", model).error
    assert "no voices by name" in tts("voices", "list", "-m", pair[0]).error


def test_voices_preview(model, tmp_path):
    run = tts("voices", "preview", "bm_small", "-m", model, "-o", tmp_path / "a.flac")
    assert run.code == 0 and soundfile.info(tmp_path / "a.flac").duration > 1
    assert "af_tiny, bm_small" in tts("voices", "preview", "x", "-m", model, "-q", "-o", tmp_path / "b.wav").error


# ---- tts config -----------------------------------------------------------------------------------------------------


def config(*arguments):
    run = tts("config", *arguments)
    assert (run.code, run.err) == (0, ""), run.err
    return run.out.decode().strip()


def test_settings_are_kept_and_forgotten(model):
    assert tts("config", "list").out == b"" and config("path") == str(settings_file())
    config("set", "speed", "1.5")
    config("set", "instruct", 'odd "words" \\ ü')
    config("set", "greedy", "on")
    config("set", "seed", "7")
    assert config("list").splitlines() == ["speed = 1.5", 'instruct = odd "words" \\ ü', "greedy = true", "seed = 7"]
    assert config("get", "speed") == "1.5"
    config("unset", "speed")
    assert "speed" not in config("list")
    for key in ("instruct", "greedy", "seed"):
        config("unset", key)
    assert not settings_file().exists()


def test_a_model_that_is_set_is_the_default(model, pair, tmp_path, monkeypatch):
    monkeypatch.chdir(model.parent)
    config("set", "model", model.name)
    assert config("get", "model") == str(model.resolve())
    config("set", "voice", "bm_small")
    out = tmp_path / "a.wav"
    run = tts("-p", "Hello.", "-o", out, "-v")
    assert run.code == 0 and "built-in" not in run.err and str(model.resolve()) in run.err
    # Another model, typed or from --config, does not get what belongs to the one that is set.
    assert tts("-m", pair[0], "-p", "Hello.", "-n", "2", "-o", out).code == 0
    (tmp_path / "q.toml").write_text(f"model = '{pair[0]}'\nmax-frames = 2\n", encoding="utf-8")
    assert tts("--config", tmp_path / "q.toml", "-p", "Hello.", "-o", out).code == 0
    assert tts("-p", "Hello.", "--voice", "af_tiny", "-o", out).code == 0


def test_one_model_replaces_another(model, pair):
    config("set", "mmproj", pair[1])
    config("set", "model", pair[0])
    config("set", "hf-repo", "owner/name")
    assert config("list") == "hf-repo = owner/name"
    config("set", "model", "builtin")
    assert config("list") == "model = builtin"


@pytest.mark.parametrize("arguments, words", [
    (("set", "colour", "red"), "'colour' cannot be kept; there are chunk-frames"),
    (("set", "prompt", "x"), "cannot be kept"), (("set", "explain", "true"), "cannot be kept"),
    (("set", "speed", "fast"), "'fast' is not a number"),
    (("set", "speed", "9"), "the most is 4"), (("set", "greedy", "maybe"), "on or off"),
    (("set", "model", "absent.gguf"), "no such file"), (("get", "voice"), "not set"), (("unset", "voice"), "not set"),
])
def test_settings_that_cannot_be(arguments, words):
    run = tts("config", *arguments)
    assert run.code == 2 and words in run.error


def test_a_damaged_settings_file_is_named(model, tmp_path):
    settings_file().parent.mkdir(parents=True)
    settings_file().write_text("speed = ", encoding="utf-8")
    run = tts("-m", model, "-p", "a", "-o", tmp_path / "a.wav")
    assert run.code == 2 and str(settings_file()) in run.error


# ---- interactive ----------------------------------------------------------------------------------------------------


def test_voices_in_a_session(model):
    from concurrent.futures import Future

    from tts_cli.background import Worker
    from tts_cli.engine import SpeechRequest
    from tts_cli.loading import open_engine
    from tts_cli.repl import Needs, Session
    from tts_cli.repl_commands import Settings

    said: list[str] = []
    with Worker() as worker:
        engine: Future = worker.submit(open_engine, model)
        session = Session(engine, worker, Settings(SpeechRequest("")), Needs(None, None, None), said.append)
        for line in ("/voice bm_small", "/voice af_tiny:0.5,bm_small:0.5", "/voice nobody", "/set speed 2",
                     "/set speed 9", f"/voice {model / 'voices' / 'af_tiny.pt'}"):
            session.submit(line)
            session.wait()
        assert session.voices == ["af_tiny", "bm_small"]
        assert session.settings.request.speed == 2 and session.settings.request.voice.name == "af_tiny"
        session.close()
    assert said[:2] == ["voice bm_small", "voice af_tiny:0.5,bm_small:0.5"] and said[-1] == "voice af_tiny"
    assert "there are af_tiny, bm_small" in said[2] and said[3] == "speed 2.0" and "the most is 4" in said[4]
