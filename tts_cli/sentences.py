"""Where sentences end, without knowing the language.

One table of abbreviations serves all languages: reading `Dr.` as an abbreviation everywhere costs nothing, and texts
mix languages. In doubt a stop is "weak": a place to cut when a sentence is too long, not the end of one.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

# A stop of these ends a sentence without white space behind it.
_FULL_STOPS = "。！？｡．।॥؟۔።။។"
_STOP = re.compile(rf"[{_FULL_STOPS}]+|[.!?…]+")
# Han, kana and hangul: text that goes on directly behind an ASCII `!` or `?`.
CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_CJK = re.compile(f"[{CJK}]")
# Quotes and brackets that close behind a stop. `“`, `‘` and `«` close in German and Danish, open in English and
# French: they close only in front of white space. French sets a space in front of `»`.
CLOSERS = "\"'”’›)\\]}」』）】〉》〕"
_CLOSERS = re.compile(f"(?:[{CLOSERS}]|[“‘«](?=\\s|\\Z)|[ \u00a0\u202f]?»(?!\\w))*")
_EMOJI = re.compile("(?:[ ]?[\u2600-\u27bf\U0001f000-\U0001faff\u200d\ufe0f])*")
# White space, perhaps a bullet or a dialogue dash, and opening quotes; then the next sentence's first character.
_NEXT = re.compile("\\s+(?:[-–—•*·>]+\\s+)?[\"“”„«»‹›'‘’(\\[{¿¡「『（]*")
_OPENERS = "「『（【〈《〔“‘"
_WORD_BEFORE = re.compile(r"(?<![^\s(\[«»\"“”„'‘’-])[^\W\d_](?:[^\W\d_]|\.(?=[^\W\d_])|['’](?=[^\W\d_]))*\Z")
_NUMBER_BEFORE = re.compile(r"(?<![^\s(\[])\d{1,2}\Z")  # an ordinal (`3. Mai`) or the number of a list item
_LONGEST_ABBREVIATION = 12

# Letters with a stop (`J. R.`, `z. B.`, `т. е.`) and short parts with stops between (`e.g.`, `U.S.`) need no table.
# Never the end of a sentence: a name, a noun or the rest of a phrase follows.
_BEFORE_ANYTHING = frozenset(" ".join((
    "dr mr mrs ms mx prof st mt rev hon gen col capt lt sgt cmdr adm gov sen rep pres supt messrs ft",  # English
    "cf viz vs esp incl ex",
    "hr fr frl bzw ca evtl ggf inkl exkl zzgl vgl sog geb gest mio mrd tsd dipl ing mag hl ev bspw insb",  # German
    "mme mmes mlle mlles mgr ste env av boul",  # French
    "sr sra srta srtas sres dra dña ud uds lic arq excmo ilmo",  # Spanish
    "sig sig.ra sig.na sigg dott dott.ssa prof.ssa avv geom rag egr gent spett",  # Italian
    "sta exmo exma eng profª",  # Portuguese
    "гр тов проф акад доц им ул пер пл см ср напр тыс млн млрд",  # Russian
)).split())
# Not the end of a sentence when a number follows: `No. 5`, but `No. I will not.`
_BEFORE_NUMBER = frozenset(" ".join((
    "no nos nr fig figs eq sec ch chap vol vols pp par para art pt ver approx ed op tel ext est apt max min",
    "jan feb apr jun jul aug sept sep oct okt nov dec dez",
    "abb abs bd kap tab ziff anm aufl",
    "tél",
    "num núm pág págs cap aprox",
    "pag pagg nn",
    "рис стр гл табл ст тел кв корп",
)).split())


@dataclass(frozen=True)
class Stop:
    """`end`: index behind the stop and what closes with it. `strong`: a sentence ends here; else it may be cut here."""

    end: int
    strong: bool


def stops(text: str, start: int, end: int) -> Iterator[Stop]:
    """The stops in `text[start:end]`, from left to right; looks a little further to see what follows the last one."""
    for match in _STOP.finditer(text, start, end):
        stop = match.group()
        closed = _CLOSERS.match(text, match.end()).end()
        behind = _EMOJI.match(text, closed).end()
        following = _NEXT.match(text, behind)
        first = text[following.end():following.end() + 1] if following else text[behind:behind + 1]
        if not first:
            yield Stop(min(behind, end), True)
        elif stop[-1] in _FULL_STOPS:
            if stop == "．" and first.isdigit():
                continue
            # Behind a closing quote the sentence often goes on: 「そうですか。」と言った。
            yield Stop(min(behind, end), bool(following) or behind == match.end() or first in _OPENERS)
        elif following is None:
            if _CJK.match(first) and stop[-1] in "!?" or behind > closed:
                yield Stop(min(behind, end), behind == match.end())
        elif stop != "." or not _is_abbreviation(text[max(start, match.start() - 24):match.start()], first):
            numbered = stop == "." and _NUMBER_BEFORE.search(text, max(start, match.start() - 4), match.start())
            yield Stop(min(behind, end), not (first.islower() or numbered))


def _is_abbreviation(before: str, following: str) -> bool:
    """Is the single full stop behind `before` part of the word?"""
    match = _WORD_BEFORE.search(before)
    if match is None:
        return False
    word = match.group().lower()
    if len(word) == 1:  # an initial, or a letter of `z. B.`, `p. ex.`, `т. е.`
        return word.upper() != word
    if len(word) > _LONGEST_ABBREVIATION:
        return False
    parts = word.split(".")
    return (word in _BEFORE_ANYTHING or (word in _BEFORE_NUMBER and following.isdigit())
            or (len(parts) > 1 and all(len(part) <= 2 for part in parts)))  # e.g., U.S., a.m., EE.UU., т.е.
