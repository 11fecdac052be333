"""Long text as a stream of utterances: whole sentences, packed up to a length the model keeps steady.

The text is taken window by window, so that the first utterance is there at once and memory does not grow with the
text. Every letter and digit is spoken once and in order. Symbols (`***`, emoji) go with the nearest word and are never
spoken alone; a run of them longer than half an utterance is cut short, for there is nothing to speak in it.

`[pause:1.5s]` and `[pause:300ms]` set the silence at that place, up to 30 s, in place of the usual one; several in one
place add up. Whatever else looks like a tag is text.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

from tts_cli.errors import NothingToSpeak, UsageError
from tts_cli.sentences import CJK, CLOSERS, stops

MAX_CHARS = 200
MIN_MAX_CHARS = 40
GAP = 0.25
PARAGRAPH_GAP = 0.6
MAX_PAUSE = 30.0
_INSIDE = 0.1  # seconds; the speech of each part begins and ends with some silence of its own

_WORD = re.compile(r"[^\W_]")  # a letter or a digit, as `clean_text` counts them
_WHITE = re.compile(r"\s*")
_PAUSE = re.compile(r"\[pause:[ ]?([0-9]{1,9}(?:\.[0-9]{1,9})?)[ ]?(ms|s)\]", re.IGNORECASE)
_ENDS_UTTERANCE = re.compile(rf"{_PAUSE.pattern}|\n[^\S\n]*\n", re.IGNORECASE)
_LOOK_AHEAD = 64  # longer than any pause tag
_SIGNS = 4  # the most symbols that belong to the word behind them: `("-5`
# Where a sentence that is too long is cut, best first; each match ends where the cut may be.
_CUTS = [re.compile(pattern) for pattern in (
    rf"[;:–—][{CLOSERS}]*(?=\s)|—+|[；：]|……|(?<=\S)(?=\n)",
    rf"[,][{CLOSERS}]*(?=\s)|[，、،､]",
    r"(?<=\S)(?=[^\S\u00a0\u202f\u2007])|(?<=\u200b)",
    r"(?<=\S)(?=\s)",
)]
_LATIN_PER_SECOND, _CJK_PER_SECOND = 15.0, 4.5
_CJK_RUN = re.compile(f"[{CJK}]+")


@dataclass(frozen=True)
class Utterance:
    """`text` has something to speak; `lead` and `pause`: seconds of silence before and after it."""

    text: str
    pause: float
    lead: float = 0.0


def utterances(text: str, *, max_chars: int = MAX_CHARS, gap: float = GAP,
               paragraph_gap: float | None = None) -> Iterator[Utterance]:
    """Split cleaned text (see `clean_text`) lazily into utterances of at most `max_chars` characters.

    `gap`: seconds after a sentence, half of it where a sentence had to be cut; `paragraph_gap` where an empty line
    stands, by default 0.6 s and at least twice the gap. The last one has a pause, the first one a lead, only where the
    text asks for it.
    Raises `UsageError`, at the call, for numbers out of range and `NothingToSpeak` for text with nothing to speak.
    """
    if max_chars < MIN_MAX_CHARS:
        raise UsageError(f"max_chars: {max_chars} is too small, the least is {MIN_MAX_CHARS}")
    if paragraph_gap is None:
        paragraph_gap = max(PARAGRAPH_GAP, min(2 * gap, MAX_PAUSE))
    for name, seconds in (("gap", gap), ("paragraph_gap", paragraph_gap)):
        if not 0 <= seconds <= MAX_PAUSE:
            raise UsageError(f"{name}: {seconds} is not a number of seconds from 0 to {MAX_PAUSE:g}")
    split = _split(text, max_chars, gap, paragraph_gap)
    first = next(split, None)
    if first is None:
        raise NothingToSpeak("nothing to speak in the text; at least one letter or digit is needed")
    return chain([first], split)


def at_most(max_chars: int | None, pieces: Iterable[Utterance]) -> Iterator[Utterance]:
    """The same text with the same silence around it, but cut again where a piece is longer than `max_chars`.

    What was one utterance has little silence inside. None is no limit.
    """
    for piece in pieces:
        if max_chars is None or len(piece.text) <= max_chars:
            yield piece
            continue
        parts = list(utterances(piece.text, max_chars=max_chars, gap=_INSIDE, paragraph_gap=_INSIDE))
        parts[0] = replace(parts[0], lead=piece.lead)
        parts[-1] = replace(parts[-1], pause=piece.pause)
        yield from parts


def estimate_seconds(text: str) -> float:
    """Roughly how long `text` takes to speak, in seconds: 15 letters, or 4.5 Chinese or Japanese characters, each."""
    cjk = sum(len(run.group()) for run in _CJK_RUN.finditer(text))
    return cjk / _CJK_PER_SECOND + (len(text) - cjk) / _LATIN_PER_SECOND


def _split(text: str, max_chars: int, gap: float, paragraph_gap: float) -> Iterator[Utterance]:
    room = max_chars // 2  # for symbols in front of the first word
    held = ""
    ready: Utterance | None = None  # waits until what follows it is known
    break_ = _Break(0.0)
    position = 0
    while True:
        position = break_.skip(text, position)
        if position == len(text):
            break
        budget = max_chars - len(held) - 1 if held else max_chars
        window = min(position + 2 * budget + _LOOK_AHEAD, len(text))
        ender = _ENDS_UTTERANCE.search(text, position, window)
        end = ender.start() if ender else _whole_cluster(text, position, window)
        word = _WORD.search(text, position, end)
        begin = end if word is None else _begin_of_word(text, position, word.start())
        if word is None or (begin > position and len(held) + bool(held) + word.start() - position > room):
            held = _join(held, text[position:min(begin, position + max_chars)].rstrip())
            held = held[:_whole_cluster(held, 0, room - _SIGNS - 1)].rstrip()
            position = begin
            continue
        if ready is not None:
            yield replace(ready, pause=break_.seconds(paragraph_gap))
            lead = 0.0
        else:
            lead = break_.asked or 0.0
        cut, strong = _cut(text, position, budget, end, word.end())
        ready = Utterance(_join(held, text[position:cut].rstrip()), 0.0, lead)
        held, position, break_ = "", cut, _Break(gap if strong else gap / 2)
    if ready is not None:
        yield from _with_last_symbols(ready, held, max_chars, gap / 2, break_.asked or 0.0)


@dataclass
class _Break:
    """What lies between two utterances: the usual gap, unless an empty line or a pause tag is found there."""

    gap: float
    paragraph: bool = False
    asked: float | None = None

    def skip(self, text: str, position: int) -> int:
        """The index of the next character to speak."""
        while True:
            white = _WHITE.match(text, position)
            self.paragraph |= text.count("\n", white.start(), white.end()) > 1
            tag = _PAUSE.match(text, white.end())
            if tag is None:
                return white.end()
            seconds = float(tag[1]) / (1000 if tag[2].lower() == "ms" else 1)
            self.asked = min((self.asked or 0.0) + seconds, MAX_PAUSE)
            position = tag.end()

    def seconds(self, paragraph_gap: float) -> float:
        if self.asked is not None:
            return self.asked
        return paragraph_gap if self.paragraph else self.gap


def _with_last_symbols(last: Utterance, symbols: str, max_chars: int, gap: float, pause: float) -> Iterator[Utterance]:
    """The last utterance with the symbols that found no word behind them; in two when they do not fit in one."""
    text = _join(last.text, symbols)
    if len(text) > max_chars:
        cut, _ = _cut(text, 0, max_chars, len(text), _WORD.search(text).end())
        if _WORD.search(text, cut):
            yield Utterance(text[:cut].rstrip(), gap, last.lead)
            last, text = replace(last, lead=0.0), text[cut:].lstrip()
        else:
            text = text[:cut].rstrip()
    yield replace(last, text=text, pause=pause)


def _join(held: str, text: str) -> str:
    return f"{held} {text}" if held and text else held + text


def _begin_of_word(text: str, position: int, word: int) -> int:
    """Where to start when symbols stand in front of a word: its sign, quote or bracket goes with it, not more."""
    begin = max(position, word - _SIGNS)
    white = re.search(r"\s\S*\Z", text[begin:word])
    if white:
        return begin + white.start() + 1
    return position if begin == position else _whole_cluster(text, position, begin)


def _cut(text: str, start: int, budget: int, end: int, least: int) -> tuple[int, bool]:
    """Where the utterance that begins at `start` ends, at most `budget` characters on, and whether a sentence does.

    `end`: end of the paragraph or of what is seen of it; `least`: end of the first letter. Neither the utterance nor
    what is left up to `end` is without a letter or digit, unless a run of symbols is longer than the budget.
    """
    while text[end - 1].isspace():
        end -= 1
    if end - start <= budget:
        return end, True
    last = end - 1
    while not _WORD.match(text[last]):
        last -= 1
    found = [stop for stop in stops(text, start, end)
             if least <= stop.end <= last and not _inside_cluster(text, start, stop.end)]
    strong = [stop.end for stop in found if stop.strong]
    fitting = [place for place in strong if place - start <= budget]
    if fitting:
        return fitting[-1], True
    length = (strong[0] if strong else end) - start
    aim = start + (budget if length > 2 * budget else length // 2)  # two halves rather than a long and a short piece
    levels = [[stop.end for stop in found]]
    levels += [[match.end() for match in pattern.finditer(text, start, start + budget + 1)] for pattern in _CUTS]
    for shortest in (budget // 3, 1):
        for level in levels:
            places = [place for place in level
                      if max(least, start + shortest) <= place <= min(last, start + budget)
                      and not _inside_cluster(text, start, place)]
            if places:
                return min(places, key=lambda place: abs(place - aim)), False
    # A letter goes on with the symbols that end the text, unless they are many.
    return _whole_cluster(text, start, min(start + budget, last if last > start + budget // 2 else end)), False


def _whole_cluster(text: str, start: int, place: int) -> int:
    """`place` or the nearest index before it that is not inside a character as its reader sees it.

    Combining marks, joined emoji, flags, conjuncts and hangul syllables stay whole (in the spirit of UAX #29), except
    where one alone is longer than the piece.
    """
    if place >= len(text):
        return len(text)
    whole = place
    while whole > start and _inside_cluster(text, start, whole):
        whole -= 1
    return whole if whole > start else place


def _inside_cluster(text: str, start: int, place: int) -> bool:
    before, after = text[place - 1], text[place]
    if (unicodedata.category(after)[0] == "M" or after in "\u200c\u200d\u0e33\u0eb3\uff9e\uff9f"
            or "\U0001f3fb" <= after <= "\U0001f3ff" or "\U000e0020" <= after <= "\U000e007f"):
        return True
    if before == "\u200d" or (before == "\r" and after == "\n"):
        return True
    if unicodedata.combining(before) == 9:  # a virama ties the next consonant
        return unicodedata.category(after) == "Lo"
    if "\u1160" <= after <= "\u11ff":  # vowel and final jamo
        return "\u1100" <= before <= "\u11ff" or "\uac00" <= before <= "\ud7a3"
    if _is_flag_half(after):
        halves = 0
        while place - halves > start and _is_flag_half(text[place - halves - 1]):
            halves += 1
        return halves % 2 == 1
    return False


def _is_flag_half(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


