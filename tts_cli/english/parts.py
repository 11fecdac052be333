"""Text to parts: what is read as it stands, what is said in other words, and what is not said.

Rules look at the whole text, in order, and claim spans of it; no rule sees another's words, so a reading is never
read again. The parts cover the text, which is how a spoken word finds its way back to the written one.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tts_cli.english.symbols import SYMBOLS

LONGEST_RUN = 40  # characters without a space: the lexicon's search for words in a run takes cubic time

_TURN = 6  # and a hyphen or a capital inside a word weighs as much as this many letters more

Reading = Callable[["re.Match[str]", bool], "str | None"]


@dataclass(frozen=True)
class Rule:
    """`say(match, british)` gives the words for the group named `say`, or for the whole match; None: not this one."""

    pattern: "re.Pattern[str]"
    say: Reading


@dataclass(frozen=True)
class Part:
    """The span `start:end` of the text. `spoken` is what is read for it, "" for nothing; `phonemes` replaces that
    reading."""

    start: int
    end: int
    spoken: str
    phonemes: str | None = None


_FOLDED = {ord(c): "'" for c in "’‘‛ʼ′＇`´"} | {ord(c): "-" for c in "‐‑‒−﹣"} | {ord(c): '"' for c in "„‟«»″"}
_LINK = re.compile(r"\[([^\[\]()/\n]{1,200})\]\(/([^()/\n]{1,400})/\)")


def fold(text: str) -> str:
    """Look-alikes to the plain character, one for one: digits of any script, full-width letters, dashes, quotes."""
    if text.isascii():
        return text
    return "".join(_fold(c) for c in text.translate(_FOLDED))


def _fold(c: str) -> str:
    if c.isascii():
        return c
    if c.isdecimal():
        return str(unicodedata.decimal(c))
    if c.isspace():
        return " "
    if len(c.lower()) > 1:  # İ
        return unicodedata.normalize("NFKD", c)[0]
    plain = unicodedata.normalize("NFKC", c)
    return plain if len(plain) == 1 and plain.isascii() and not c.isnumeric() else c


def parts(text: str, rules: Sequence[Rule], british: bool) -> list[Part]:
    """The parts of folded `text`, in order, without gaps."""
    claimed = bytearray(len(text))
    found = [*_links(text, claimed)]
    for rule in rules:
        group: str | int = "say" if "say" in rule.pattern.groupindex else 0
        for match in rule.pattern.finditer(text):
            start, end = match.span(group)
            if any(claimed[start:end]) or (spoken := rule.say(match, british)) is None:
                continue
            claimed[start:end] = b"\1" * (end - start)
            found.append(Part(start, end, spoken))
    return [*_with_gaps(text, sorted(found, key=lambda part: part.start))]


def _links(text: str, claimed: bytearray) -> Iterator[Part]:
    """`[word](/ipa/)`: the word, spoken as the phonemes say. One with anything else in it is text like any other."""
    for match in _LINK.finditer(text):
        phonemes = match[2].replace("g", "ɡ")
        if all(c in SYMBOLS for c in phonemes):
            start, end = match.span()
            claimed[start:end] = b"\1" * (end - start)
            yield Part(start, end, match[1], phonemes)


def _with_gaps(text: str, found: list[Part]) -> Iterator[Part]:
    at = 0
    for part in found:
        if part.start > at:
            yield Part(at, part.start, text[at:part.start])
        yield part
        at = part.end
    if at < len(text):
        yield Part(at, len(text), text[at:])


@dataclass(frozen=True)
class Spoken:
    """The words to say, and for each of their characters the span of the text that it stands for."""

    text: str
    spans: list[tuple[int, int]]
    fixed: dict[int, str]  # offset in `text` of a stretch whose phonemes are given


def spoken(text: str, found: Sequence[Part]) -> Spoken:
    """Join the readings of the parts. Words get a space where two readings meet, and so does a run that is too long."""
    chars: list[str] = []
    spans: list[tuple[int, int]] = []
    fixed = {}
    run = 0

    def put(c: str, span: tuple[int, int]) -> None:
        nonlocal run
        turn = c == "-" or c.isupper() and bool(chars) and chars[-1].islower()
        run = 0 if c == " " else run + 1 + _TURN * turn
        if run > LONGEST_RUN:
            chars.append(" ")
            spans.append(span)
            run = 1
        chars.append(c)
        spans.append(span)

    verbatim = True
    for part in found:
        as_written = part.phonemes is None and part.spoken == text[part.start:part.end]
        words = part.spoken.replace("\n", " ").replace("\t", " ")
        meets = chars and words and (chars[-1].isalnum() or chars[-1] == ".") and words[0].isalnum()
        if part.phonemes is not None or meets and not (as_written and verbatim):
            put(" ", (part.start, part.start))
        if part.phonemes is not None:
            fixed[len(chars)] = part.phonemes
            words = "".join(c for c in words if c.isalpha())[:LONGEST_RUN] or "x"
        for i, c in enumerate(words):
            put(c, (part.start + i, part.start + i + 1) if as_written else (part.start, part.end))
        verbatim = as_written
        if part.phonemes is not None:
            put(" ", (part.end, part.end))
    return Spoken("".join(chars), spans, fixed)
