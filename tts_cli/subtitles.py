"""Subtitle files: one cue an utterance, or shorter ones where an engine knows when its words sound.

SubRip (`.srt`) as players read it; WebVTT (`.vtt`) as the W3C specifies it. Both UTF-8.
"""

import json
import re
import textwrap
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path

from tts_cli.engine import Word
from tts_cli.errors import TtsError
from tts_cli.files import whole_file
from tts_cli.reading import Mark
from tts_cli.sentences import stops

LINE_CHARS = 42
CUE_CHARS = 2 * LINE_CHARS
CUE_PAUSE = 1.0  # seconds of silence that end a cue
_ENDS_CLAUSE = re.compile(r"[,;:—，；：、][\"'”’)\]]*\Z")


def write_srt(marks: Iterable[Mark], path: str | Path) -> None:
    """Write `marks` as SubRip; the file appears when it is complete. Raises `TtsError`."""
    cues = (f"{number}\n{_time(mark.start, ',')} --> {_time(mark.end, ',')}\n{_lines(mark.text, _plain)}\n\n"
            for number, mark in enumerate(marks, 1))
    _write(cues, path)


def write_vtt(marks: Iterable[Mark], path: str | Path) -> None:
    """Write `marks` as WebVTT; the file appears when it is complete. Raises `TtsError`."""
    cues = (f"{_time(mark.start, '.')} --> {_time(mark.end, '.')}\n{_lines(mark.text, _escaped)}\n\n"
            for mark in marks)
    _write(chain(["WEBVTT\n\n"], cues), path)


def write_timestamps(marks: Iterable[Mark], words: Iterable[Word], path: str | Path) -> None:
    """Write seconds from the first sample as JSON: {"utterances": [{start, end, text}, …], "words": [the same]}.

    Raises `TtsError`.
    """
    def rows(timed) -> list[dict]:
        return [{"start": round(one.start, 3), "end": round(one.end, 3), "text": one.text} for one in timed]

    content = json.dumps({"utterances": rows(marks), "words": rows(words)}, ensure_ascii=False, indent=1)
    _write([content, "\n"], path)


def cues(words: Iterable[Word]) -> list[Mark]:
    """Words to cues of at most two lines, which end with a sentence, at a silence, or where the lines are full, then
    behind the last clause if there is one in the second half."""
    words = list(words)
    text = " ".join(word.text for word in words)
    ends = {stop.end for stop in stops(text, 0, len(text)) if stop.strong}
    found: list[Mark] = []
    held: list[Word] = []
    position = -1  # in `text`, of the end of what is held

    def close(count: int) -> None:
        found.append(Mark(held[0].start, held[count - 1].end, " ".join(word.text for word in held[:count])))
        del held[:count]

    for word in words:
        while held and sum(len(one.text) + 1 for one in held) + len(word.text) > CUE_CHARS:
            clauses = [i for i, one in enumerate(held, 1) if _ENDS_CLAUSE.search(one.text) and 2 * i >= len(held)]
            close(clauses[-1] if clauses else len(held))
        if held and (word.start - held[-1].end >= CUE_PAUSE or position in ends):
            close(len(held))
        held.append(word)
        position += 1 + len(word.text)
    if held:
        close(len(held))
    return found


def _write(parts: Iterable[str], path: str | Path) -> None:
    try:
        with whole_file(path) as file:
            for part in parts:
                file.write(part.encode())
    except OSError as error:
        raise TtsError(f"cannot write {path}: {error.strerror or error}") from error


def _time(seconds: float, point: str) -> str:
    """hh:mm:ss and milliseconds."""
    total = round(1000 * seconds)
    minutes, milliseconds = divmod(total, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{milliseconds // 1000:02}{point}{milliseconds % 1000:03}"


def _lines(text: str, write: Callable[[str], str]) -> str:
    """Broken into lines people can read; white space as single spaces, for an empty line would end the cue."""
    lines = textwrap.wrap(" ".join(text.split()), LINE_CHARS, break_long_words=False, break_on_hyphens=False)
    return "\n".join(write(line) for line in lines)


def _plain(line: str) -> str:
    """SubRip has no escapes; players show what is not a tag they know."""
    return line.replace("-->", "→")


def _escaped(line: str) -> str:
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
