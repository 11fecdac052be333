"""Phonemes to the passes of the model: at most so many symbols each, cut where a reader would breathe, none lost."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tts_cli.kokoro.g2p import Token

# Where a pass may end, best first: behind a sentence, a clause, a phrase, a word.
_LEVELS = [re.compile(pattern) for pattern in (
    r"[.!?…]+[”\")]*(?= )", r"[:;][”\")]*(?= )|—+", r",[”\")]*(?= )", r"(?<=[^ ])(?= )")]
# The first pass is a sentence or clause of this many symbols where there is one, best of the shorter: 2 to 6 seconds.
_EARLY_LEAST, _EARLY_MOST = 24, (64, 100)
_EARLY_FROM = 130  # shorter texts stay whole
_EARLY_PHRASE = 80  # and of those without punctuation, only long ones are cut
_EARLY_PHRASE_FROM = 250


@dataclass(frozen=True)
class Symbols:
    """What the model can say of some tokens. `owner[i]`: the token that symbol i belongs to, -1 for a space between.
    `unknown`: how many symbols the vocabulary lacks."""

    text: str
    owner: tuple[int, ...]
    unknown: int = 0


@dataclass(frozen=True)
class Pass:
    """Symbols `start` to `end` for one run of the model; `level`: 0 when a sentence ends there, then clause, phrase,
    word, and 4 inside a word."""

    start: int
    end: int
    level: int = 0


def symbols(tokens: Sequence[Token], vocab: Mapping[str, int]) -> Symbols:
    """The phonemes of the tokens that `vocab` knows, with single spaces."""
    text, owner, unknown = [], [], 0
    for index, token in enumerate(tokens):
        for symbol in token.phonemes + " " * token.whitespace_after:
            if symbol.isspace():
                symbol = " "
            if symbol not in vocab:
                unknown += 1
            elif symbol != " " or (text and text[-1] != " "):
                text.append(symbol)
                owner.append(-1 if symbol == " " else index)
    return Symbols("".join(text), tuple(owner), unknown)


def passes(text: str, most: int, *, early: bool) -> list[Pass]:
    """Cut into passes of at most `most` symbols without spaces at their ends; nothing but spaces lies between.

    `early`: the first one is a short clause.
    """
    found: list[Pass] = []
    start, end = _stripped(text, 0, len(text))
    while start < end:
        cut = _early_cut(text, start, end) if early and not found else None
        if cut is None or cut[0] - start > most:
            cut = _cut(text, start, end, most) if end - start > most else (end, 0)
        first, last = _stripped(text, start, cut[0])
        found.append(Pass(first, last, cut[1]))
        start, _ = _stripped(text, cut[0], end)
    return found


def _early_cut(text: str, start: int, end: int) -> tuple[int, int] | None:
    length = end - start
    if length <= _EARLY_FROM:
        return None
    least = start + _EARLY_LEAST
    for most in _EARLY_MOST:
        for level in (0, 1, 2):
            for match in _LEVELS[level].finditer(text, least, min(start + most, end - _EARLY_LEAST)):
                return match.end(), level
    if length > _EARLY_PHRASE_FROM and (place := text.rfind(" ", least, start + _EARLY_PHRASE)) > 0:
        return place, 3
    return None


def _cut(text: str, start: int, end: int, most: int) -> tuple[int, int]:
    """The best place at most `most` symbols on: of the best level, the one that leaves the halves even when two passes
    are enough, else the last one."""
    rest = end - start
    aim = start + (most if rest > 2 * most else (rest + 1) // 2)
    least = max(start + most // 4, end - most if rest <= 2 * most else 0)
    for shortest in (least, start + 1):
        for level, pattern in enumerate(_LEVELS):
            places = [match.end() for match in pattern.finditer(text, start, min(start + most + 1, end))]
            places = [place for place in places if shortest <= place <= start + most]
            if places:
                return min(places, key=lambda place: abs(place - aim)), level
    return start + most, len(_LEVELS)


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    while start < end and text[start] == " ":
        start += 1
    while end > start and text[end - 1] == " ":
        end -= 1
    return start, end
