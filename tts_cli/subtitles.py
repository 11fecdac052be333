"""Subtitle files: one cue an utterance, timed from the samples.

SubRip (`.srt`) as players read it; WebVTT (`.vtt`) as the W3C specifies it. Both UTF-8.
"""

import textwrap
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path

from tts_cli.cli.files import whole_file
from tts_cli.errors import TtsError
from tts_cli.reading import Mark

LINE_CHARS = 42


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
