"""Many utterances as one stream: the chunks of `Engine.speak`, exact silence between, one honest result."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tts_cli.engine import AudioChunk, CancelToken, Speech, SpeechRequest
from tts_cli.errors import NothingToSpeak, TtsError, UsageError
from tts_cli.loading import load_engine
from tts_cli.reading import Mark, Reading
from tts_cli.utterances import Utterance, at_most, utterances

RATE, FRAME = 1000, 80
NO_CODES = np.zeros((0, 2), np.int32)


class Tones:
    """An engine that speaks one frame of a constant a letter; "!" fails, "~" never ends by itself, "#" says nothing."""

    sample_rate = RATE

    def __init__(self, with_codes=True):
        self.asked = []
        self.with_codes = with_codes

    def unread(self, request) -> list[str]:
        return []

    def parts(self, pieces):
        return iter(pieces)

    def check(self, request):
        if "?" in request.text:
            raise UsageError("text: no questions")
        if "#" in request.text:
            raise NothingToSpeak("nothing to speak: only signs")

    def speak(self, request, cancel=None):
        self.check(request)
        self.asked.append(request)
        return Speech(self._chunks(request, cancel or CancelToken()), RATE, request.seed)

    def _chunks(self, request, cancel):
        limit = request.max_frames or 10
        for number in range(10_000 if "~" in request.text else len(request.text)):
            if cancel.cancelled or number == limit:
                yield self._chunk(NO_CODES, "cancelled" if cancel.cancelled else "limit")
                return
            if request.text[min(number, len(request.text) - 1)] == "!":
                raise TtsError("the model failed")
            yield self._chunk(np.full((1, 2), number + 1, np.int32), None)
        yield self._chunk(NO_CODES, "eos")

    def _chunk(self, codes, reason):
        samples = np.repeat(codes[:, 0], FRAME).astype(np.float32) / 100
        return AudioChunk(samples, RATE, codes if self.with_codes else None, reason)


def reading(engine, *pieces, cancel=None, together=1, **options):
    pieces = [piece if isinstance(piece, Utterance) else Utterance(piece, 0.0) for piece in pieces]
    return Reading(engine, SpeechRequest(**({"text": "", "seed": 1} | options)), pieces, cancel, together)


def samples(chunks):
    return np.concatenate([chunk.samples for chunk in chunks])


def test_no_utterance_is_longer_than_the_model_was_trained_on():
    engine = Tones()
    engine.parts = partial(at_most, 40)
    text = "This one is short. This one, as you see, has two halves of which each would fit."
    speech = reading(engine, Utterance(text, 0.2))
    list(speech)
    asked = [request.text for request in engine.asked]
    assert " ".join(asked) == text and len(asked) == 3 and max(map(len, asked)) <= 40
    assert [mark.text for mark in speech.marks] == asked


def reasons(chunks):
    return [chunk.finish_reason for chunk in chunks if chunk.finish_reason]


def test_silence_is_exact_and_marks_are_sample_positions():
    r = reading(Tones(), Utterance("abc", 0.25), Utterance("de", 1.2345, lead=0.0), Utterance("f", 0.0))
    audio = samples(r)
    want = [np.repeat([1, 2, 3], FRAME), np.zeros(250), np.repeat([1, 2], FRAME), np.zeros(1234),
            np.repeat([1], FRAME)]
    np.testing.assert_array_equal(audio, np.concatenate(want).astype(np.float32) / 100)
    assert r.marks == [Mark(0.0, 0.24, "abc"), Mark(0.49, 0.65, "de"), Mark(1.884, 1.964, "f")]
    for mark in r.marks:
        assert np.all(audio[round(mark.start * RATE):round(mark.end * RATE)] > 0)
    assert (r.result.samples, r.result.frames, r.result.finish_reason) == (len(audio), 6, "eos")
    assert r.result.peak == np.float32(0.03) and r.cut == []


def test_a_lead_waits_for_sound():
    """A frame that is no sound yet does not let the silence before it begin."""
    class Slow(Tones):
        def _chunks(self, *arguments):
            yield AudioChunk(np.zeros(0, np.float32), RATE)
            yield from super()._chunks(*arguments)
    r = reading(Slow(), Utterance("a", 0.0, lead=0.5))
    assert next(r).samples.size == 0
    assert next(r).samples.size == RATE // 2


def test_a_lead_and_a_last_pause_are_silence_too():
    chunks = list(reading(Tones(), Utterance("a", 0.75, lead=1.5)))
    np.testing.assert_array_equal(samples(chunks), np.r_[np.zeros(1500), np.full(80, 0.01), np.zeros(750)].astype("f4"))
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].finish_reason == "eos"


def test_first_audio_is_measured_from_the_request_to_sound_not_to_silence():
    engine = Tones()
    r = reading(engine, Utterance("a", 0.0, lead=0.1))
    assert not np.any(next(r).samples) and len(engine.asked) == 1  # generated before the silence went out
    list(r)
    assert 0 <= r.result.first_audio_seconds <= r.result.wall_seconds


def test_only_the_last_chunk_has_a_finish_reason():
    chunks = list(reading(Tones(), Utterance("ab", 0.1), "cd", "ef"))
    assert reasons(chunks) == ["eos"] and chunks[-1].finish_reason == "eos"


def test_silence_has_no_codes_and_every_code_is_passed_on():
    chunks = list(reading(Tones(), Utterance("ab", 0.1), "cde"))
    codes = np.concatenate([chunk.codes for chunk in chunks if chunk.codes is not None])
    assert codes[:, 0].tolist() == [1, 2, 1, 2, 3]
    assert all(chunk.codes is None for chunk in chunks if chunk.samples.size and not chunk.samples.any())


def test_every_utterance_gets_the_same_request():
    engine = Tones()
    r = reading(engine, "a", "b", "c", seed=None, temperature=0.5, language="German")
    list(r)
    assert [request.text for request in engine.asked] == ["a", "b", "c"]
    assert [request.early for request in engine.asked] == [True, False, False]  # only the first is waited for
    assert {replace(request, text="", early=True) for request in engine.asked} == {
        SpeechRequest("", seed=r.seed, temperature=0.5, language="German")}
    assert r.seed == r.result.seed is not None


def test_an_utterance_is_not_made_before_its_turn():
    engine, taken = Tones(), []

    def pieces():
        for text in ("ab", "cd", "ef"):
            taken.append(text)
            yield Utterance(text, 1.0)

    r = Reading(engine, SpeechRequest("", seed=1), pieces())
    assert engine.asked == [] and taken == ["ab"]
    seen = 0
    for chunk in r:
        seen += chunk.samples.size
        assert len(engine.asked) == 1 + (seen > 2 * FRAME + 1000) + (seen > 2 * (2 * FRAME + 1000))
        assert len(taken) <= len(engine.asked) + 1


def test_utterances_side_by_side_are_taken_in_order():
    pieces = ["abcdef", Utterance("", 0.5, lead=0.1), "ab", "~", "cd", "e"]
    alone, engine = reading(Tones(), *pieces), Tones()
    together = reading(engine, *pieces, together=3)
    first = next(together)
    assert [request.text for request in engine.asked] == ["abcdef", "", "ab"]
    assert all(request.in_turns for request in engine.asked)
    np.testing.assert_array_equal(samples([first, *together]), samples(list(alone)))
    assert (together.marks, together.cut, together.result.frames) == (alone.marks, [3], alone.result.frames)
    assert [request.early for request in engine.asked] == [True] + 5 * [False]


def test_an_explicit_limit_is_kept_side_by_side():
    engine = Tones()
    r = reading(engine, "abc", "def", "g", max_frames=4, together=3)
    list(r)
    assert r.result.frames == 4 and [request.max_frames for request in engine.asked] == [4, 1]


@pytest.mark.parametrize("wrong, error", [("why?", UsageError), ("de!", TtsError)])
def test_a_fault_side_by_side_comes_when_its_utterance_has_its_turn(wrong, error):
    r, seen = reading(Tones(), Utterance("abcde", 0.5), wrong, "f", together=3), 0
    with pytest.raises(error):
        for chunk in r:
            seen += chunk.samples.size
    assert seen >= 5 * FRAME + 500


def test_cancelled_side_by_side():
    cancel = CancelToken()
    r = reading(Tones(), "abc", "def", "ghi", cancel=cancel, together=2)
    next(r)
    cancel.cancel()
    assert reasons(list(r)) == ["cancelled"] and len(r.marks) == 1


def test_a_model_s_utterances_side_by_side_are_the_same_samples(pair):
    engine = load_engine(*pair, device="cpu")
    pieces = ["Hello there.", Utterance("Good morning to all of you.", 0.2), "One.", "Two and three."]
    alone = list(reading(engine, *pieces, text_mode="full"))
    together = list(reading(engine, *pieces, text_mode="full", together=engine.together))
    assert engine.together > 1
    np.testing.assert_array_equal(samples(alone), samples(together))


def test_a_cut_utterance_is_noted_and_the_others_go_on():
    r = reading(Tones(), "ab", "c~", "de", "~")
    chunks = list(r)
    assert r.cut == [1, 3] and reasons(chunks) == ["limit"] and r.result.finish_reason == "limit"
    assert [mark.text for mark in r.marks] == ["ab", "c~", "de", "~"]
    assert r.result.frames == 2 + 10 + 2 + 10


def test_a_cut_first_utterance_still_makes_the_whole_limit():
    r = reading(Tones(), "~", "ab")
    assert reasons(list(r)) == ["limit"] and r.cut == [0]


@pytest.mark.parametrize("limit, frames, reason, asked", [
    (1, 1, "limit", [1]), (2, 2, "limit", [2]), (3, 3, "limit", [3]), (4, 4, "limit", [4, 1]),
    (6, 6, "limit", [6, 3]), (7, 7, "eos", [7, 4, 1]), (50, 7, "eos", [50, 47, 44]),
])
def test_an_explicit_limit_counts_over_the_whole_reading(limit, frames, reason, asked):
    engine = Tones()
    r = reading(engine, Utterance("abc", 0.5), Utterance("def", 0.5), "g", max_frames=limit)
    chunks = list(r)
    assert (r.result.frames, r.result.finish_reason, reasons(chunks)) == (frames, reason, [reason])
    assert [request.max_frames for request in engine.asked] == asked
    assert r.cut == []


def test_an_explicit_limit_ends_the_reading_without_codes_as_well():
    r = reading(Tones(with_codes=False), "abc", "def", max_frames=2)
    assert reasons(list(r)) == ["limit"] and len(r.marks) == 1


def test_cancelled_while_speaking():
    cancel = CancelToken()
    r = reading(Tones(), "abc", "def", cancel=cancel)
    next(r)
    cancel.cancel()
    assert [(chunk.samples.size, chunk.finish_reason) for chunk in r] == [(0, "cancelled")]
    assert r.result.finish_reason == "cancelled" and r.result.frames == 1
    assert r.marks == [Mark(0.0, 0.08, "abc")]


@pytest.mark.parametrize("following", [["b"], []])
def test_cancelled_in_a_pause(following):
    cancel, engine = CancelToken(), Tones()
    r = reading(engine, Utterance("a", 30.0), *following, cancel=cancel)
    while next(r).codes is not None:
        pass
    cancel.cancel()
    assert [(chunk.samples.size, chunk.finish_reason) for chunk in r] == [(0, "cancelled")]
    assert len(engine.asked) == 1 and r.result.audio_seconds < 2


def test_cancelled_before_it_began():
    cancel, engine = CancelToken(), Tones()
    cancel.cancel()
    r = reading(engine, "a", cancel=cancel)
    assert reasons(list(r)) == ["cancelled"]
    assert engine.asked == [] and r.marks == [] and r.result.first_audio_seconds is None


def test_cancelling_after_a_cut_is_cancelled():
    cancel = CancelToken()
    r = reading(Tones(), "~", "ab", cancel=cancel)
    got = []
    for chunk in r:
        got.append(chunk)
        if len(r.marks) == 1:
            cancel.cancel()
    assert reasons(got) == ["cancelled"] and r.result.finish_reason == "cancelled"


def test_an_error_in_the_middle_comes_through():
    r = reading(Tones(), "ab", "c!", "ef")
    got = []
    with pytest.raises(TtsError, match="the model failed"):
        for chunk in r:
            got.append(chunk)
    assert samples(got).size == 3 * FRAME and reasons(got) == []
    assert [mark.text for mark in r.marks] == ["ab"]
    with pytest.raises(RuntimeError):
        _ = r.result


def test_what_the_engine_refuses_is_refused_at_once():
    with pytest.raises(UsageError, match="no questions"):
        reading(Tones(), "a?", "b")
    later = reading(Tones(), "a", "b?")
    with pytest.raises(UsageError, match="no questions"):
        list(later)


def test_no_pieces_are_an_empty_reading():
    r = reading(Tones())
    assert [(chunk.samples.size, chunk.finish_reason) for chunk in r] == [(0, "eos")]


def test_a_long_pause_comes_in_small_chunks():
    assert max(chunk.samples.size for chunk in reading(Tones(), Utterance("a", 30.0), "b")) <= RATE / 2


def test_numbers_that_are_none_are_never_passed_on():
    class Dead(Tones):
        def _chunks(self, request, cancel):
            yield AudioChunk(np.full(9, np.nan, np.float32), RATE, NO_CODES, "eos")

    with pytest.raises(TtsError, match="not numbers"):
        list(reading(Dead(), "a", "b"))


# ---- with a model ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine(pair):
    return load_engine(*pair, device="cpu", dtype="float32")


@pytest.mark.parametrize("options", [{"max_frames": 9}, {}, {"chunk_frames": (3,), "max_frames": 9}])
def test_a_short_text_is_exactly_what_the_engine_speaks(engine, options):
    request = SpeechRequest("Hi.", seed=4, **options)
    speech = engine.speak(request)
    want = list(speech)
    r = Reading(engine, request, utterances(request.text))
    got = list(r)
    assert [c.samples.tobytes() for c in got] == [c.samples.tobytes() for c in want]
    assert [c.codes.tobytes() for c in got] == [c.codes.tobytes() for c in want]
    assert [c.finish_reason for c in got] == [c.finish_reason for c in want]
    assert (r.result.samples, r.result.frames, r.result.peak) == (
        speech.result.samples, speech.result.frames, speech.result.peak)


def test_a_long_text_is_its_utterances_one_after_another(engine):
    request = SpeechRequest("", seed=4, temperature=0.5)
    pieces = [Utterance("A", 0.1), Utterance("B", 0.0)]
    want = []
    for piece in pieces:
        want += [samples(engine.speak(replace(request, text=piece.text))),
                 np.zeros(round(24000 * piece.pause), np.float32)]
    r = Reading(engine, request, pieces)
    assert samples(r).tobytes() == np.concatenate(want).tobytes()
    lengths = [len(part) for part in want]
    starts = [sum(lengths[:i]) for i in (0, 2)]
    assert r.marks == [Mark(start / 24000, (start + len(part)) / 24000, piece.text)
                       for start, part, piece in zip(starts, want[::2], pieces, strict=True)]


@pytest.mark.parametrize("together", [1, 3])
@pytest.mark.parametrize("pieces", [
    ["#", "ab", "cd"], ["ab", "#", "#", "cd"], ["ab", "cd", "#"], ["#", "ab", "#", "cd"]])
def test_utterances_with_nothing_for_the_model_are_left_out_with_their_silence(pieces, together):
    taken = reading(Tones(), *(Utterance(text, 0.1 if text != "cd" else 0.0) for text in pieces), together=together)
    samples = np.concatenate([chunk.samples for chunk in taken])
    plain = reading(Tones(), Utterance("ab", 0.1), Utterance("cd", 0.0))
    np.testing.assert_array_equal(samples, np.concatenate([chunk.samples for chunk in plain]))
    assert taken.marks == plain.marks and taken.result.finish_reason == "eos"


def test_nothing_in_any_utterance_is_refused_at_once():
    with pytest.raises(NothingToSpeak):
        reading(Tones(), "#", "##")
    assert list(reading(Tones()))[-1].finish_reason == "eos"
