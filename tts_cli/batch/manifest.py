"""A manifest's rows as they are written, read lazily: JSON lines, tables with a header, or plain text.

Nothing is interpreted here but the container; a row that cannot be read is a `Problem` in its place.
"""

import csv
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, takewhile
from pathlib import Path
from typing import BinaryIO

from tts_cli.audio import shown
from tts_cli.errors import UsageError
from tts_cli.sentences import stops
from tts_cli.text import MAX_TEXT_BYTES, decode_text

JSON_SUFFIXES = (".jsonl", ".ndjson")
DELIMITERS = {".csv": ",;\t", ".tsv": "\t", ".tab": "\t"}  # the first one that is in the header
_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs"}
NEEDED = ("id", "text")  # columns of a table
DIVISIONS = ("line", "paragraph", "sentence")
MAX_LINE_BYTES = 6 * MAX_TEXT_BYTES + (1 << 20)  # a text whose every character is escaped, and its options
_WORD = re.compile(r"[^\W_]")


@dataclass(frozen=True)
class Entry:
    """One row: the line it begins on, from 1, and its columns. Values of JSON have its types, others are text.

    paragraph  which one it is a sentence of; None where that is not known
    """

    line: int
    fields: dict[str, object]
    paragraph: int | None = None


@dataclass(frozen=True)
class Problem:
    """What is wrong on a line."""

    line: int
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}"


def read_manifest(path: str | Path, by: str | None = None) -> Iterator[Entry | Problem]:
    """The rows of a manifest, in order; the file's extension says its kind.

    .jsonl, .ndjson    an object a line
    .csv, .tsv, .tab   a table with a header; .csv also with semicolons, as Excel writes it where commas are decimal
    others             text: an utterance a line, or `by` "paragraph" or "sentence"; ids are six-digit numbers, those
                       of the lines or counted

    Blank lines are left out, in plain text also those without a letter or digit.
    Raises `UsageError`, at the call for a file that is not there and for no such `by`.
    """
    path = Path(path)
    kind = path.suffix.lower()
    table = kind in JSON_SUFFIXES or kind in DELIMITERS
    if by is not None and table:
        raise UsageError(f"--by divides plain text; {shown(path)} has its rows already")
    if by not in (None, *DIVISIONS):
        raise UsageError(f"--by: {by!r} is not one of {', '.join(DIVISIONS)}")
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "is not a file that can be read twice" if path.exists() else (
            "no such file")
        raise UsageError(f"{shown(path)}: {what}; give a manifest: .jsonl, .csv, .tsv or plain text")
    if kind in JSON_SUFFIXES:
        return _read(path, _objects)
    if kind in DELIMITERS:
        return _read(path, lambda lines: _table(lines, DELIMITERS[kind]))
    return _read(path, _Text(by or "line").entries)


def _read(path: Path, parse) -> Iterator[Entry | Problem]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise UsageError(f"{shown(path)}: {error.strerror}; give a readable manifest") from None
    with file:
        yield from parse(_Lines(file))


class _Lines:
    """The lines of a UTF-8 file with their ends; `number` is that of the last one.

    Ends at one that is not UTF-8 or too long, which `problem` tells.
    """

    def __init__(self, file: BinaryIO):
        self._file = file
        self.number = 0
        self.problem: Problem | None = None

    def __iter__(self) -> Iterator[str]:
        while raw := self._file.readline(MAX_LINE_BYTES + 1):
            self.number += 1
            try:
                if len(raw) > MAX_LINE_BYTES:
                    raise UsageError(f"longer than {MAX_LINE_BYTES >> 20} MiB; divide it into rows")
                line = decode_text(raw, "the manifest")
            except UsageError as error:
                self.problem = Problem(self.number, str(error))
                return
            yield line


def _objects(lines: _Lines) -> Iterator[Entry | Problem]:
    for line in lines:
        if not line.strip():
            continue
        try:
            value = json.loads(line, object_pairs_hook=_object, parse_constant=_not_json, parse_float=_finite)
        except (ValueError, RecursionError) as error:
            yield Problem(lines.number, f"not JSON: {error or 'nested too deeply'}")
            continue
        if isinstance(value, dict):
            yield Entry(lines.number, value)
        else:
            yield Problem(lines.number, 'not a JSON object such as {"id": "a1", "text": "Hello."}')
    if lines.problem:
        yield lines.problem


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is given twice")
    return found


def _not_json(constant: str):
    raise ValueError(f"{constant} is no value of JSON")


def _finite(number: str) -> float:
    return float(number) if math.isfinite(float(number)) else _not_json(number)


def _table(lines: _Lines, delimiters: str) -> Iterator[Entry | Problem]:
    csv.field_size_limit(MAX_LINE_BYTES)  # it is the process's, and 128 KiB at first
    read, head = iter(lines), [""]  # up to the header
    while not head[-1].strip() and (line := next(read, None)) is not None:
        head.append(line)
    delimiter = next((one for one in delimiters if one in head[-1]), delimiters[0])
    rows = csv.reader(chain(head[1:], read), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    begin = 1
    try:
        for row in rows:
            if not any(cell.strip() for cell in row):
                pass
            elif header is None:
                header = [name.strip() for name in row]
                if repeated := sorted({name for name in header if name and header.count(name) > 1}):
                    yield Problem(begin, f"the header names {', '.join(repeated)} more than once")
                    return
                if missing := [name for name in NEEDED if name not in map(str.lower, header)]:
                    yield Problem(begin, f"the header has no column {' and no column '.join(missing)}; it names "
                                         f"{', '.join(header)[:100]}")
                    return
            elif len(row) > len(header):
                yield Problem(begin, f"{len(row)} cells, and the header has {len(header)}; put cells that hold "
                                     f"{_NAMES[delimiter]} in double quotes")
            else:
                yield Entry(begin, {name: cell for name, cell in zip(header, row, strict=False) if name and cell != ""})
            begin = rows.line_num + 1
    except csv.Error as error:
        yield Problem(begin, f"cannot be read as a table: {error}")
    if lines.problem:
        yield lines.problem


class _Text:
    """Plain text, divided by lines, by empty lines, or by the ends of sentences inside those."""

    def __init__(self, by: str):
        self._by = by

    def entries(self, lines: _Lines) -> Iterator[Entry | Problem]:
        if self._by == "line":
            for line in lines:
                if _WORD.search(line):
                    yield _numbered(lines.number, lines.number, line)
        else:
            count = 0
            for paragraph, (begin, text) in enumerate(self._paragraphs(lines)):
                for offset, part in self._parts(text):
                    count += 1
                    yield _numbered(begin + text.count("\n", 0, offset), count, part,
                                    paragraph if self._by == "sentence" else None)
        if lines.problem:
            yield lines.problem

    def _paragraphs(self, lines: _Lines) -> Iterator[tuple[int, str]]:
        read = iter(lines)
        for line in read:
            if line.strip():
                begin = lines.number
                yield begin, "".join([line, *takewhile(str.strip, read)])

    def _parts(self, text: str) -> Iterator[tuple[int, str]]:
        """(offset, text) of what has something to speak; a line of asterisks between two scenes has not."""
        ends = [stop.end for stop in stops(text, 0, len(text)) if stop.strong] if self._by == "sentence" else []
        for begin, end in zip([0, *ends], [*ends, len(text)], strict=True):
            part = text[begin:end].lstrip()
            if _WORD.search(part):
                yield end - len(part), part


def _numbered(line: int, number: int, text: str, paragraph: int | None = None) -> Entry:
    return Entry(line, {"id": f"{number:06d}", "text": text.strip()}, paragraph)
