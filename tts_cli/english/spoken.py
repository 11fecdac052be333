"""The words that are said for numbers, money, dates, units, addresses and signs."""

import re

from tts_cli.english import measures, parts, written

RULES = (*written.FIRST, *measures.RULES, *written.LAST)


def spoken_form(text: str, british: bool = False) -> str:
    """`text` in the words that are said for it: "$5 at 10:05" → "five dollars at ten oh five"."""
    folded = parts.fold(text)
    words = parts.spoken(folded, parts.parts(folded, RULES, british)).text
    return re.sub(r" +(?=[,.;:!?…)])", "", " ".join(words.split()))


def unread(text: str) -> list[str]:
    """The words of `text` in scripts that English has no reading for; they are left out, so a caller can say so. Words
    whose phonemes are given are read."""
    found = parts.parts(parts.fold(text), (), british=False)
    text = "".join(part.spoken if part.phonemes is None else " " for part in found)
    return re.findall(r"[^\W\d_\u0000-\u024f\u0370-\u03ff\u1e00-\u1fff\ufb00-\ufb06]+", text)
