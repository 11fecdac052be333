"""Long text as utterances: nothing lost, nothing repeated, in order, bounded, lazy, whatever the text is."""

import random
import re
import sys
import time
import tracemalloc
import unicodedata
from itertools import islice

import pytest

from tts_cli.errors import UsageError
from tts_cli.text import clean_text
from tts_cli.utterances import (
    GAP,
    MAX_CHARS,
    MAX_PAUSE,
    MIN_MAX_CHARS,
    PARAGRAPH_GAP,
    Utterance,
    at_most,
    estimate_seconds,
    utterances,
)

PROSE = "Dr. Smith paid $3.50 yesterday. He left, and then came back. \"Really?\" she asked. "


def texts(text, **options):
    return [piece.text for piece in utterances(text, **options)]


def packed(text):
    return "".join(text.split())


def spoken(text):
    return [c for c in text if c.isalnum()]


# ---- splitting and packing ---------------------------------------------------------------------------------------


def test_a_short_text_is_one_utterance_as_it_stands():
    text = "Hello world,\nthis is  a test. And more… (or not)"
    assert list(utterances(text)) == [Utterance(text, 0.0)]


def test_pieces_too_long_for_a_model_are_cut_again():
    """At the same places as if it had been asked for; the silence around stays, inside is little."""
    short, long = Utterance("Well.", 0.25), Utterance(" ".join((PROSE * 2).split()), 0.6, lead=1.0)
    first, *parts = at_most(60, [short, long])
    assert first is short and len(parts) > 2 and all(len(part.text) <= 60 for part in parts)
    assert [part.text for part in parts] == texts(long.text, max_chars=60)
    assert (parts[0].lead, parts[-1].pause) == (1.0, 0.6)
    assert all(part.lead == 0 for part in parts[1:]) and all(0 < part.pause <= 0.1 for part in parts[:-1])
    assert list(at_most(MAX_CHARS, [short, long])) == [short, long]


def test_whole_sentences_are_packed_up_to_the_limit():
    text = PROSE * 8
    pieces = texts(text)
    assert all(len(piece) <= MAX_CHARS for piece in pieces)
    sentences = ["Dr. Smith paid $3.50 yesterday.", "He left, and then came back.", '"Really?" she asked.'] * 8
    for piece in pieces:
        taken = next(n for n in range(1, 25) if " ".join(sentences[:n]) == piece)
        sentences = sentences[taken:]
        assert not sentences or len(piece) + 1 + len(sentences[0]) > MAX_CHARS
    assert not sentences


@pytest.mark.parametrize("text, first", [
    ("aaaa bbbb cccc dddd; eeee ffff, gggg hhhh iiii jjjj", "aaaa bbbb cccc dddd;"),
    ("aaaa bbbb cccc dddd eeee, ffff gggg hhhh iiii jjjj", "aaaa bbbb cccc dddd eeee,"),
    ("aaaa bbbb cccc—dddd, eeee ffff gggg hhhh iiii jjjj", "aaaa bbbb cccc—"),
    ("aaaa bbbb cccc dddd eeee\nffff gggg hhhh, iiii jjjj", "aaaa bbbb cccc dddd eeee"),
    ("aaaa bbbb cccc, dddd. eeee ffff, gggg hhhh iiii", "aaaa bbbb cccc, dddd."),
    ("aaaa bbbb cccc dddd eeee ffff gggg hhhh iiii jjjj", "aaaa bbbb cccc dddd eeee"),
    ("aaaa 1,000.5 bbbb 10:30 cccc dddd eeee ffff gggg h", "aaaa 1,000.5 bbbb 10:30"),
    ("aaaa bbbb cccc 10\u00a0km ddddddddddddddddd eeee fff gg", "aaaa bbbb cccc 10\u00a0km"),
    ("你" * 20 + "，" + "好" * 30, "你" * 20 + "，"),
    ("你" * 20 + "、" + "好" * 30, "你" * 20 + "、"),
    ("你" * 50, "你" * 40),
    ("a" * 50, "a" * 40),
])
def test_a_sentence_that_is_too_long_is_cut_at_the_best_place(text, first):
    pieces = texts(text, max_chars=40)
    assert pieces[0] == first
    assert packed("".join(pieces)) == packed(text)


def test_a_sentence_that_is_too_long_leaves_no_crumb():
    assert texts("word " * 9, max_chars=40) == ["word word word word word", "word word word word"]


def test_what_kokoro_lost_is_kept():
    """600 words without punctuation, 2000 Chinese characters with full stops only, one word of 800 letters."""
    for text in ("word " * 600, "今天天气很好我们去公园玩。" * 160, "x" * 800):
        assert packed("".join(texts(text))) == packed(text)


@pytest.mark.parametrize("text", ["with 82 million", "1999", "-5", "1,000.5", "№3", "1次", "½", "Ⅷ"])
def test_bare_numbers_are_kept(text):
    assert texts(text) == [text]


@pytest.mark.parametrize("text, want", [
    ("One.\n\n***\n\nTwo.", ["One.", "*** Two."]),
    ("One.\n\n😀", ["One. 😀"]),
    ("* * *\n\nOne.", ["* * * One."]),
    ("One.\n\n—\n\n…\n\nTwo.\n\n---", ["One.", "— … Two. ---"]),
    ("a" * 40 + "\n\n😀", ["a" * 39, "a 😀"]),
    ("你" * 40 + "。", ["你" * 39, "你。"]),
    ("aaaa " * 8 + "😀😀😀", ["aaaa aaaa aaaa aaaa", "aaaa aaaa aaaa aaaa 😀😀😀"]),
])
def test_symbols_go_with_the_nearest_word(text, want):
    assert texts(text, max_chars=40) == want


@pytest.mark.parametrize("text", ["-" * 80 + "\n\nTitle\n" + "=" * 80 + "\n\nText", "Index " + "." * 90 + " 5"])
def test_rules_across_a_page_are_kept(text):
    assert packed("".join(texts(text))) == packed(text)


# ---- silence -----------------------------------------------------------------------------------------------------


def test_the_usual_silences():
    sentence, long = "a" * 150 + ".", " ".join(["word"] * 60)
    pieces = list(utterances(f"{sentence} B{sentence}\n \t\n{long}"))
    assert [piece.pause for piece in pieces] == [GAP, PARAGRAPH_GAP, GAP / 2, 0.0]
    pieces = list(utterances(f"{sentence} B{sentence}\n\n\n{long}", gap=1.0, paragraph_gap=0.0))
    assert [piece.pause for piece in pieces] == [1.0, 0.0, 0.5, 0.0]


@pytest.mark.parametrize("gap, paragraph", [(0.0, PARAGRAPH_GAP), (0.25, PARAGRAPH_GAP), (1.0, 2.0), (20.0, MAX_PAUSE)])
def test_a_paragraph_gets_a_longer_silence_than_a_sentence(gap, paragraph):
    assert [piece.pause for piece in utterances("One.\n\nTwo.", gap=gap)] == [paragraph, 0.0]


@pytest.mark.parametrize("text, want", [
    ("Hi there [pause:1s]", [("Hi there", 1.0)]),
    ("One [pause:1.5s] two", [("One", 1.5), ("two", 0.0)]),
    ("One[pause:300ms]two", [("One", 0.3), ("two", 0.0)]),
    ("One. [PAUSE: 2 S]\n\nTwo.", [("One.", 2.0), ("Two.", 0.0)]),
    ("One.\n\n[pause:0s]\n\nTwo.", [("One.", 0.0), ("Two.", 0.0)]),
    ("One [pause:1s] [pause:0.5s] two", [("One", 1.5), ("two", 0.0)]),
    ("One [pause:20s][pause:20s] two", [("One", MAX_PAUSE), ("two", 0.0)]),
    ("One [pause:999999999s] two", [("One", MAX_PAUSE), ("two", 0.0)]),
    ("One [pause:1s] 😀 [pause:1s] two", [("One", 2.0), ("😀 two", 0.0)]),
])
def test_pause_tags(text, want):
    assert [(piece.text, piece.pause) for piece in utterances(text)] == want
    assert all(piece.lead == 0.0 for piece in utterances(text))


def test_a_pause_before_the_first_word():
    assert list(utterances("[pause:1s] \n\n [pause:250ms] One. [pause:1s] Two.")) == [
        Utterance("One.", 1.0, lead=1.25), Utterance("Two.", 0.0)]


@pytest.mark.parametrize("text", [
    "a [pause] b", "a [pause:] b", "a [pause:s] b", "a [pause:1] b", "a [pause:-1s] b", "a [pause:1h] b",
    "a [pause:1,5s] b", "a [pause:infs] b", "a [pause:1e3s] b", "a [pause:١s] b", "a [pause:1s b", "a pause:1s] b",
    "a [pause:1.s] b", "a [pause:9999999999s] b", 'a <break time="1s"/> b', "<speak>x</speak>", "a < b > c & d",
    "a [laugh] b", "a [[pause:1 s b",
])
def test_what_is_not_a_pause_tag_is_text(text):
    assert list(utterances(text)) == [Utterance(text, 0.0)]


# ---- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "  \n", "…", "😀" * 1000, "[pause:1s]", "*\n\n*", "_"])
def test_nothing_to_speak_is_refused_at_the_call(text):
    with pytest.raises(UsageError, match="nothing to speak"):
        utterances(text)


@pytest.mark.parametrize("options, message", [
    ({"max_chars": MIN_MAX_CHARS - 1}, "max_chars: 39 is too small"),
    ({"max_chars": 0}, "max_chars"),
    ({"gap": -0.1}, "gap: -0.1 is not"),
    ({"gap": float("nan")}, "gap"),
    ({"gap": float("inf")}, "gap"),
    ({"paragraph_gap": 31.0}, "paragraph_gap: 31.0 is not .* 0 to 30"),
])
def test_numbers_out_of_range_are_refused_at_the_call(options, message):
    with pytest.raises(UsageError, match=message):
        utterances("a", **options)


# ---- any text ----------------------------------------------------------------------------------------------------

WORDS = ["a", "the", "Hello", "Dr.", "3.50", "e.g.", "U.S.", "(so", "so)", "“Yes.”", "»Nein«", "https://a.b/c?d=1",
         "x" * 70, "你好", "。", "，", "「はい。」", "안녕", "مرحبا", "שלום", "नमस्ते", "क्षत्रिय", "สวัสดี",
         "👩\u200d👩\u200d👧", "🇩🇪🇫🇷", "👍🏽",
         "e\u0301\u0323", "\u1112\u1161\u11ab", "…", "...", "!", "?!", "—",
         "-", ";", ":", ",", "***", "[pause", "[x]", "1.", "№3"]
GAPS = ["", " ", " ", " ", " ", ". ", ", ", "\n", "\u00a0", "\t", "\n\n", "\n \n\n"]


def random_text(seed):
    dice = random.Random(seed)
    words, gaps = dice.sample(WORDS, dice.randint(3, len(WORDS))), dice.sample(GAPS, dice.randint(2, len(GAPS)))
    return "".join(dice.choice(words) + dice.choice(gaps) for _ in range(dice.randint(1, 300))) + "end"


@pytest.mark.parametrize("max_chars", [MIN_MAX_CHARS, 97, MAX_CHARS, 10_000])
@pytest.mark.parametrize("block", range(4))
def test_random_texts(max_chars, block):
    for seed in range(block * 50, block * 50 + 50):
        text = clean_text(random_text(seed))
        pieces = texts(text, max_chars=max_chars)
        joined = "".join(pieces)
        assert spoken(joined) == spoken(text), seed  # every letter and digit once, in order
        if not re.search(rf"[\W_]{{{max_chars // 2 - 8},}}", text):
            assert packed(joined) == packed(text), seed  # and every symbol, unless a run of them is very long
        for piece in pieces:
            assert piece == piece.strip() and len(piece) <= max_chars, (seed, piece)
            assert spoken(piece), (seed, piece)
            assert texts(piece, max_chars=max_chars) == [piece], (seed, piece)
            assert unicodedata.category(piece[0])[0] != "M" and piece[0] != "\u200d", (seed, piece)
            assert piece[-1] != "\u200d", (seed, piece)


@pytest.mark.parametrize("cluster", [
    "e\u0301", "e\u0301\u0323\u0308", "👩\u200d👩\u200d👧\u200d👦a", "👍🏽a", "🇩🇪a", "नि", "क्ष",
    "ᄒ\u1161\u11ab", "각", "กำ\u0e49", "か\u3099", "a\ufe0f\u20e3", "葛\U000e0100", "שָׁ", "لُّ",
    "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007fa",
])
def test_characters_as_readers_see_them_stay_whole(cluster):
    for shift in range(len(cluster)):
        text = "x" * shift + cluster * 100
        pieces = texts(text, max_chars=MIN_MAX_CHARS)
        assert len(pieces) > 1 and "".join(pieces) == text
        ends = {shift + i * len(cluster) for i in range(101)}
        if cluster[-1] == "a":
            ends |= {end - 1 for end in ends}
        at = 0
        for piece in pieces:
            at += len(piece)
            assert at in ends, piece


@pytest.mark.parametrize("stop", ["。", "！", "，", "、", "；"])
def test_a_variant_of_a_punctuation_mark_stays_whole(stop):
    text = "你" * 30 + stop + "\ufe00" + "好" * 30
    pieces = texts(text, max_chars=MIN_MAX_CHARS)
    assert "".join(pieces) == text and not any(piece.startswith("\ufe00") for piece in pieces)


def test_flags_are_not_cut_in_half():
    pieces = texts("a" + "🇩🇪" * 10 + "b" * 18 + "🇫🇷" * 9 + "c" * 30, max_chars=MIN_MAX_CHARS)
    assert all(sum("\U0001f1e6" <= c <= "\U0001f1ff" for c in piece) % 2 == 0 for piece in pieces)


PATHOLOGICAL = {
    "prose": PROSE, "one paragraph": PROSE[:-2], "no spaces": "a", "dots": ".", "emoji": "😀", "flags": "🇩🇪",
    "marks": "\u0301", "joiners": "a\u200d", "viramas": "क्", "quotes": '".', "brackets": "[", "open tags": "[pause:",
    "tags": "a[pause:1s]", "paragraphs": "a\n\n", "spaces": " ", "new lines": "\n", "abbreviations": "Dr. ",
    "initials": "A. ", "commas": "a, ", "chinese": "你好，", "arabic": "مرحبا ", "hebrew": "שלום", "closers": ".»",
    "dashes": "—", "numbers": "1.", "ellipses": "… ", "nbsp": "a\u00a0", "spaced emoji": "! 😀",
    "symbols, gaps": "* \n\n",
}


@pytest.mark.parametrize("unit", PATHOLOGICAL.values(), ids=PATHOLOGICAL)
def test_the_work_grows_with_the_text_and_no_faster(unit):
    """Counted in executed lines, which no busy machine can disturb; a regular expression's share is bounded below."""
    def lines(length):
        count = 0

        def trace(frame, event, argument):
            nonlocal count
            count += 1
            return trace

        text = "a" + unit * (length // len(unit)) + "b"
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            for piece in utterances(text):
                assert len(piece.text) <= MAX_CHARS
        finally:
            sys.settrace(before)
        return count

    assert lines(16_000) <= 5 * lines(4_000) + 4_000


@pytest.mark.parametrize("unit", PATHOLOGICAL.values(), ids=PATHOLOGICAL)
def test_a_text_of_100_000_characters_keeps_every_letter(unit):
    text = "a" + unit * (100_000 // len(unit)) + "b"
    begun = time.process_time()
    got = spoken("".join(texts(text)))
    assert time.process_time() - begun < 60  # quadratic work would take hours
    assert got == spoken(text.replace("[pause:1s]", ""))


@pytest.mark.parametrize("unit", [PROSE, PROSE.replace(".", ""), "a", "你好，", "a\n\n", "😀a"])
def test_a_megabyte_is_read_lazily_and_in_flat_memory(unit):
    class Watched(str):
        """Pieces of text taken out by index or slice, at the furthest."""

        furthest = 0

        def __getitem__(self, key):
            index = key.stop if isinstance(key, slice) else key
            Watched.furthest = max(Watched.furthest, index)
            return str.__getitem__(self, key)

    text = Watched(unit * (1_000_000 // len(unit)))
    tracemalloc.start()
    try:
        stream = utterances(text)
        next(stream)
        assert Watched.furthest < 2_000
        assert sum(1 for _ in islice(stream, 400)) == 400
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()


# ---- an estimate -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text, seconds", [("a" * 150, 10), ("你" * 45, 10), ("", 0), ("你" * 9 + "a" * 30, 4)])
def test_estimate_seconds(text, seconds):
    assert estimate_seconds(text) == pytest.approx(seconds)


def test_letters_and_digits_are_those_of_clean_text():
    """A piece this module calls speakable must not be refused later, and the other way round."""
    pattern = re.compile(r"[^\W_]")
    for code in range(sys.maxunicode + 1):
        if not 0xD800 <= code <= 0xDFFF:
            assert bool(pattern.match(chr(code))) == (unicodedata.category(chr(code))[0] in "LN"), hex(code)
