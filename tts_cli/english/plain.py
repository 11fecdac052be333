"""English as a model reads it that was trained on words alone, as tiny ones are."""

import re
import string
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import replace

from tts_cli.english.parts import parts
from tts_cli.utterances import Utterance

_MARKS = {"—": ", ", "…": "... "}
# What Unicode does not take apart.
_LETTERS = {"æ": "ae", "œ": "oe", "ø": "o", "ß": "ss", "ł": "l", "đ": "d", "ð": "th", "þ": "th", "ı": "i", "ħ": "h",
            "ŋ": "ng", "ŧ": "t"}
_CAPITALS = {c.upper(): letters.capitalize() for c, letters in _LETTERS.items() if len(c.upper()) == 1}
_PLAIN = str.maketrans(_CAPITALS | _LETTERS | _MARKS)
_NAMES = dict(zip(string.ascii_uppercase, (
    "ay", "bee", "see", "dee", "ee", "eff", "gee", "aitch", "eye", "jay", "kay", "ell", "em", "en", "oh", "pee",
    "cue", "are", "ess", "tee", "you", "vee", "double you", "ex", "why", "zee"), strict=True))
# Letters with full stops, words in capitals (PDFs, too), and letters alone but for "I" and "A".
_SAID_BY_LETTER = re.compile(r"\b(?:[A-Z]\.)+[A-Z]\b(?:\.(?= [a-z]))?|\b[A-Z]{2,}(?=s?\b)|\b[B-HJ-Z]\b(?!')")


def plain(text: str) -> str:
    """Letters, spaces and `,.'?!;:-` alone: "Café № 5 — $2" → "Cafe number five, two dollars".

    Numbers and signs become the words that are said for them, abbreviations the names of their letters; letters lose
    their accents, quotes and brackets are left out. Text in other scripts leaves nothing (`unread` names it).
    """
    from tts_cli.english.spoken import spoken_form  # 19 ms, which models that read signs themselves need not pay

    text = unicodedata.normalize("NFKD", spoken_form(text).translate(_PLAIN))
    text = "".join(c for c in text if not unicodedata.combining(c))
    text = re.sub(r"[^A-Za-z,.'?!;:-]+", " ", text)
    text = re.sub(r" +(?=[,.?!;:])", "", text).lstrip(" ,.?!;:-").rstrip()
    if text.isupper() and " " in text:
        text = text.capitalize()
    return _SAID_BY_LETTER.sub(_letter_names, text) if re.search("[A-Za-z]", text) else ""


def plain_pieces(pieces: Iterable[Utterance]) -> Iterator[Utterance]:
    """Those of which nothing is left stay as they are, to be refused."""
    return (replace(piece, text=plain(piece.text) or piece.text) for piece in pieces)


def unread(text: str) -> list[str]:
    """The words of `text` with a letter that `plain` leaves out; phonemes beside a word are no text."""
    text = "".join(part.spoken for part in parts(text, (), british=False))
    lost = {c for c in set(text) if c.isalpha() and not c.isascii() and not plain(c)}
    return [word for word in re.findall(r"[^\W\d_]+", text) if not lost.isdisjoint(word)] if lost else []


def _letter_names(match: re.Match[str]) -> str:
    """The names of the letters; a long word that can be read, such as NASA, as a word."""
    word = match.group().replace(".", "")
    if len(word) > 3 and re.search("[AEIOUY]", word):
        return word.capitalize()
    return " ".join(_NAMES[letter] for letter in word)
