"""Kokoro as an engine: nothing of a text is lost, the rules of requests, words in time. Small random models mostly."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from kokoro_folder import kokoro_folder, small_config, small_pack, small_state

from tts_cli.engine import CancelToken, SpeechRequest
from tts_cli.errors import TtsError, UsageError
from tts_cli.kokoro import g2p
from tts_cli.kokoro.g2p import Token
from tts_cli.kokoro.passes import passes, symbols
from tts_cli.kokoro.voices import KokoroVoice
from tts_cli.loading import open_engine
from tts_cli.reading import Reading
from tts_cli.utterances import utterances
from tts_cli.voices import Voice

TEXT = "The quick brown fox jumps over the lazy dog, and then it sleeps for a very long time. It wakes: the sun shines."


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    engine = open_engine(kokoro_folder(tmp_path_factory.mktemp("model")), device="cpu", dtype="float32")
    engine.load()
    return engine


def request(text=TEXT, **options) -> SpeechRequest:
    return SpeechRequest(text, seed=1, **options)


def speak(engine, request, cancel=None):
    speech = engine.speak(request, cancel)
    chunks = list(speech)
    return np.concatenate([chunk.samples for chunk in chunks]), chunks, speech.result


def watch(engine, monkeypatch) -> list[str]:
    """The phonemes of each pass, as they come."""
    said = []
    names = {index: symbol for symbol, index in engine.config.vocab.items()}
    forward = engine.model.forward

    def noted(ids, *rest):
        said.append("".join(names[int(index)] for index in ids))
        return forward(ids, *rest)

    monkeypatch.setattr(engine.model, "forward", noted)
    return said


# ---- passes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [
    "a" * 1300, "ab " * 700, "ab, " * 500, "ab cd. " * 300, " a " * 5, "a" * 600 + " " + "b" * 10, "x. " + "y" * 700,
    "", "   ", "abc", "wˈʌn tˈu — θɹˈi; fˈɔɹ… “fˈIv?” sˈɪks! " * 40,
])
@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("most", [20, 510])
def test_passes_lose_nothing_and_fit(text, early, most):
    parts = passes(text, most, early=early)
    taken = [text[part.start:part.end] for part in parts]
    assert "".join(taken).replace(" ", "") == text.replace(" ", "")
    assert all(0 < len(one) <= most and one == one.strip() for one in taken)
    ends = [0, *(part.end for part in parts)]
    assert all(not text[before:part.start].strip() for before, part in zip(ends, parts, strict=False))


def test_cuts_are_where_a_reader_would_breathe():
    sentence = "ab cd, ef gh; ij kl. "
    text = sentence * 40
    assert [part.level for part in passes(text, 510, early=False)] == [0, 0]
    lengths = [part.end - part.start for part in passes("ab " * 200, 510, early=False)]
    assert len(lengths) == 2 and abs(lengths[0] - lengths[1]) < 10  # two halves, not a long one and a stump
    assert passes(text.replace(".", ""), 510, early=False)[0].level == 1
    assert passes(text.replace(".", "").replace(";", ""), 510, early=False)[0].level == 2


def test_the_first_pass_is_a_short_clause():
    text = "a" * 40 + ", " + "b c " * 60 + ". " + "d" * 50
    first, second, *_ = passes(text, 510, early=True)
    assert text[first.start:first.end] == "a" * 40 + "," and second.start == 42
    assert passes(text, 510, early=False)[0].end > 200
    assert len(passes("a" * 40 + ", " + "b" * 40, 510, early=True)) == 1  # a short text stays whole


def test_symbols_that_the_vocabulary_lacks_are_counted():
    found = symbols([Token("x", "a\u4e00b", True), Token("y", "\u4e01", True), Token("z", "c", False)],
                    {"a": 1, "b": 2, "c": 3, " ": 4})
    assert found.text == "ab c" and found.unknown == 2 and found.owner == (0, 0, -1, 2)


# ---- speaking -------------------------------------------------------------------------------------------------------


def test_samples_and_result(engine):
    samples, chunks, result = speak(engine, request("Hello."))
    assert samples.dtype == np.float32 and len(samples) % 600 == 0 and np.abs(samples).max() <= 1
    assert [chunk.finish_reason for chunk in chunks] == ["eos"] and chunks[0].codes is None
    assert (result.finish_reason, result.samples, result.sample_rate, result.seed) == ("eos", len(samples), 24000, 1)


def test_same_seed_same_bytes(engine):
    first, *_ = speak(engine, request())
    assert np.array_equal(first, speak(engine, request())[0])
    other = speak(engine, replace(request(), seed=2))[0]
    assert len(other) == len(first) and not np.array_equal(other, first)


def test_several_utterances_may_be_iterated_in_turn(engine):
    alone, chunks, _ = speak(engine, request())
    a, b = engine.speak(request()), engine.speak(request())
    both = [(next(a).samples, next(b).samples) for _ in chunks]
    assert np.array_equal(np.concatenate([pair[0] for pair in both]), alone)
    assert np.array_equal(np.concatenate([pair[1] for pair in both]), alone)


def test_speed_scales_the_durations(engine, monkeypatch):
    asked = []
    forward = engine.model.forward
    monkeypatch.setattr(engine.model, "forward", lambda ids, style, speed, noise: (
        asked.append(speed), forward(ids, style, speed, noise))[1])
    lengths = [len(speak(engine, request("Hello there.", speed=speed))[0]) for speed in (0.25, 0.5, 1, 2, 4)]
    assert lengths == sorted(lengths, reverse=True) and lengths[0] > 3 * lengths[2] > 3 * lengths[4]
    assert asked == [0.25, 0.5, 1, 2, 4]
    for speed in (0.2, 4.1, 0, -1, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="speed"):
            request(speed=speed)


def test_the_style_row_is_that_of_the_length(engine, monkeypatch):
    rows = []
    forward = engine.model.forward
    monkeypatch.setattr(engine.model, "forward", lambda ids, style, *rest: (
        rows.append((len(ids), style.clone())), forward(ids, style, *rest))[1])
    pack = small_pack(0).reshape(510, 32)
    for text in ("a", "hɛlˈoʊ", "a" * 600):
        speak(engine, request(text, phonemes=True, early=False))
    assert [length for length, _ in rows][:2] == [1, 6] and len(rows) > 3
    for length, row in rows:
        assert torch.equal(row, torch.from_numpy(pack[length - 1]))


@pytest.mark.parametrize("reason, at", [("before the first", 0), ("between", 1)])
def test_cancel_between_passes(engine, reason, at):
    cancel = CancelToken()
    speech = engine.speak(request(TEXT * 4), cancel)
    for _ in range(at):
        next(speech)
    cancel.cancel()
    rest = list(speech)
    assert [chunk.finish_reason for chunk in rest] == ["cancelled"] and rest[0].samples.size == 0
    assert speech.result.finish_reason == "cancelled"


def test_samples_that_are_no_numbers_are_not_passed_on(tmp_path):
    state = small_state(small_config())
    state["generator.post.bias"][:] = 1e4  # exp overflows
    engine = open_engine(kokoro_folder(tmp_path, state=state), device="cpu", dtype="float32")
    with pytest.raises(TtsError, match="not numbers"):
        list(engine.speak(request("Hello.")))


# ---- long text ------------------------------------------------------------------------------------------------------


def test_six_hundred_words_without_punctuation_are_all_spoken(engine, monkeypatch):
    said = watch(engine, monkeypatch)
    words = ["time", "year", "people", "way", "woman", "life", "child", "world", "school", "hand"] * 60
    _, chunks, result = speak(engine, request(" ".join(words)))
    spoken = " ".join(said).split()
    expected = [engine.phonemes(word).strip("ˈˌ") for word in words]
    assert len(spoken) == 600 and sum(a.strip("ˈˌ") == b for a, b in zip(spoken, expected, strict=True)) > 570
    assert [word.text for chunk in chunks for word in chunk.words] == words
    assert all(len(one) <= 510 for one in said) and result.finish_reason == "eos"


def test_a_long_text_comes_piece_by_piece(engine, monkeypatch):
    seen = []
    tokens = engine._tokens
    monkeypatch.setattr(engine, "_tokens", lambda text, letter: seen.append(text) or tokens(text, letter))
    speech = engine.speak(request("One sentence goes like this, and it has a second half. " * 200))
    next(speech)
    assert sum(map(len, seen)) < 1200  # no more than the next piece was looked at


def test_through_a_reading(engine):
    text = TEXT + "\n\n" + TEXT + " [pause:1s] And the end."
    reading = Reading(engine, request(), utterances(text))
    samples = np.concatenate([chunk.samples for chunk in reading])
    assert [word.text for word in reading.words] == text.replace(" [pause:1s]", "").split()
    times = [time for word in reading.words for time in (word.start, word.end)]
    assert times == sorted(times) and times[-1] <= len(samples) / 24000
    for mark in reading.marks:
        assert any(mark.start <= word.start and word.end <= mark.end for word in reading.words)


def test_pauses_in_a_text_that_is_not_divided_before(engine):
    plain = len(speak(engine, request("One. Two."))[0])
    split = speak(engine, request("[pause:1s] One. [pause:2s] Two. [pause:500ms]"))[0]
    assert np.abs(split[:24000]).max() == 0 and np.abs(split[-12000:]).max() == 0 and len(split) > plain + 3.4 * 24000


# ---- words ----------------------------------------------------------------------------------------------------------


def test_words_are_timed_by_the_durations(engine, monkeypatch):
    kept = []
    forward = engine.model.forward
    monkeypatch.setattr(engine.model, "forward", lambda *given: kept.append(forward(*given)) or kept[-1])
    _, (chunk,), _ = speak(engine, request("Hello there, you."))
    assert [word.text for word in chunk.words] == ["Hello", "there,", "you."]
    phonemes = engine.phonemes("Hello there, you.")
    ends = np.cumsum(kept[0][1].numpy()) * 600 / 24000
    first_space = phonemes.index(" ")
    assert chunk.words[0].start == pytest.approx(ends[0])  # behind the pad
    assert chunk.words[0].end == pytest.approx(ends[first_space])
    assert chunk.words[1].start == pytest.approx(ends[first_space + 1])
    assert chunk.words[-1].end <= len(chunk.samples) / 24000


def test_punctuation_goes_with_its_word(engine):
    _, chunks, _ = speak(engine, request('He said: "Stop (now)!" — and $12.50 was paid...'))
    texts = [word.text for chunk in chunks for word in chunk.words]
    assert " ".join(texts).replace(" ", "") == 'Hesaid:"Stop(now)!"—and$12.50waspaid...'
    assert all(any(c.isalnum() for c in text) for text in texts) and "$12.50" in " ".join(texts)


# ---- requests -------------------------------------------------------------------------------------------------------


def test_phonemes_there_and_back(engine, monkeypatch):
    said = watch(engine, monkeypatch)
    phonemes = engine.phonemes("Hello there, you.")
    words = speak(engine, request("Hello there, you."))[0]
    assert np.array_equal(speak(engine, request(phonemes, phonemes=True))[0], words)
    assert said == [phonemes, phonemes]
    assert engine.phonemes("[Kokoro](/kˈOkəɹO/)") == "kˈOkəɹO"
    assert engine.unknown_symbols("hɛ漢lˈo漢⌘") == ["⌘", "漢"]


def test_phonemes_without_a_known_symbol_are_refused(engine):
    with pytest.raises(UsageError, match="nothing to speak"):
        engine.check(request("漢字", phonemes=True))
    with pytest.raises(UsageError, match="nothing to speak"):
        engine.speak(request("..."))


def test_text_that_the_language_cannot_read_is_refused(engine):
    with pytest.raises(UsageError, match="language of the voice"):
        engine.check(request("漢字"))


def test_the_voice_sets_the_language_unless_it_is_given(engine, monkeypatch):
    asked = []

    class Echo:
        def phonemes(self, text):
            return [Token(text, "a", False)]

    monkeypatch.setattr("tts_cli.kokoro.engine.for_language", lambda letter: asked.append(letter) or Echo())
    for options in ({}, {"voice": "bm_small"}, {"voice": "bm_small,af_tiny"}, {"language": "British"},
                    {"voice": "bm_small", "language": "en"}, {"voice": "bm_small", "language": "en-US"},
                    {"language": "es"}, {"language": "japanese"}, {"voice": KokoroVoice("zf_x", np.ones((510, 32)))}):
        engine.check(request("a", **options))
    assert asked == ["a", "b", "b", "b", "b", "a", "e", "j", "z"]
    with pytest.raises(UsageError, match="klingon.*spanish"):
        engine.check(request(language="klingon"))


@pytest.mark.parametrize("letter, code", [("z", "zh"), ("j", "ja"), ("e", "es")])
def test_a_language_that_is_not_installed_says_how(engine, monkeypatch, letter, code):
    def absent(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(g2p, "import_module", absent)
    g2p.for_language.cache_clear()
    with pytest.raises(UsageError, match="pip install") as error:
        engine.check(request("這是一個很長的句子。" * 200, language=code))
    assert "\n" not in str(error.value)


def test_voices_that_do_not_fit(engine):
    with pytest.raises(UsageError, match="af_tiny, bm_small"):
        engine.check(request(voice="af_nobody"))
    with pytest.raises(UsageError, match="cannot clone.*Base"):
        engine.check(request(voice=Voice("clip", np.zeros(8, np.float32))))
    with pytest.raises(UsageError, match=r"\[3, 4\].*\[510, 32\]"):
        engine.check(request(voice=KokoroVoice("x", np.zeros((3, 4), np.float32))))
    with pytest.raises(UsageError, match="cannot clone.*Base"):
        engine.voice_from_clip(np.zeros(24000, np.float32), "clip")
    with pytest.raises(UsageError, match="instruct"):
        engine.check(request(instruct="whisper"))


def test_what_kokoro_has_no_use_for_changes_nothing(engine):
    plain = speak(engine, request("Hello."))[0]
    odd = request("Hello.", temperature=0.1, top_k=1, greedy=True, max_frames=1, chunk_frames=(3,), text_mode="full")
    assert np.array_equal(speak(engine, odd)[0], plain)
    assert {"temperature", "max_frames", "chunk_frames"} <= engine.unused


def test_qwen_refuses_what_is_for_kokoro(pair):
    engine = open_engine(*pair)
    for options, word in (({"speed": 2.0}, "speed"), ({"phonemes": True}, "phonemes"), ({"voice": "af_heart"}, "voice"),
                          ({"voice": KokoroVoice("af_heart", np.zeros((510, 256), np.float32))}, "voice")):
        with pytest.raises(UsageError, match=word):
            engine.check(SpeechRequest("Hello.", **options))


# ---- the real weights -----------------------------------------------------------------------------------------------


def test_hello(kokoro):
    samples, (chunk,), _ = speak(kokoro, request("həlˈO.", phonemes=True))
    assert 20_000 < len(samples) < 60_000 and 0.1 < np.abs(samples).max() < 1
    loud = np.flatnonzero(np.abs(samples) > 0.02)
    assert 0.2 < loud[0] / 24000 < 0.6


def test_cuts_inside_a_text_leave_no_long_silence(kokoro):
    samples, chunks, _ = speak(kokoro, request(TEXT + " " + TEXT[:60]))
    assert len(chunks) > 1
    joint = len(chunks[0].samples)
    loud = np.flatnonzero(np.abs(samples) > 0.01)
    pause = loud[loud >= joint][0] - loud[loud < joint][-1]
    assert pause / 24000 < 0.25  # the two passes alone would leave about 0.8 s
