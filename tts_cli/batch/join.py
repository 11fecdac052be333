"""All rows of a batch as one file, with its chapters as a cue sheet and JSON, and its subtitles as SubRip.

A chapter begins where the column `chapter` changes; without that column every row is one. The rows are read and
written block by block, so memory does not grow with the book.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tts_cli.audio import shown
from tts_cli.audio.encode import FORMATS
from tts_cli.audio.wav_stream import SAMPLE_BYTES
from tts_cli.audio.write import check_output, choose_format, open_writer
from tts_cli.batch.rows import Row
from tts_cli.batch.store import Records
from tts_cli.errors import TtsError, UsageError
from tts_cli.files import whole_file
from tts_cli.reading import Mark
from tts_cli.subtitles import write_srt
from tts_cli.utterances import GAP, PARAGRAPH_GAP

TITLE_CHARS = 60
_BLOCK = 1 << 16  # samples
_RAW = {"s16": "<i2", "f32": "<f4"}
_FULL_SCALE = np.float32(32767)  # as `wav_stream.to_int16` has it, so that 16-bit samples stay what they are
_CUE_RATE = 75  # frames a second of a cue sheet's times


@dataclass
class Chapter:
    """`start`, `end`: seconds from the first sample of the book."""

    title: str
    start: float
    end: float


class Book:
    """The files of `--join FILE`. Raises, at once, `UsageError` or `TtsError` for what cannot be written.

    gap     seconds between two rows, None: 0.6; between sentences of plain text as within a long one, None: 0.25 in a
            paragraph, and between paragraphs not less than 0.6
    inputs  files that none of them may replace
    """

    def __init__(self, path: str | Path, gap: float | None = None, inputs: Sequence[str | Path] = ()):
        if str(path) == "-":
            raise UsageError("--join: the book cannot go to standard output; name a file")
        self._format = choose_format(path)
        self._path = Path(path).resolve()
        self._gap, self._sentence_gap = (PARAGRAPH_GAP, GAP) if gap is None else (gap, gap)
        self._paragraph_gap = max(self._gap, PARAGRAPH_GAP)
        self.files = [self._path, *(self._path.with_suffix(suffix) for suffix in (".cue", ".json", ".srt"))]
        for file in self.files:
            check_output(file, inputs=inputs)

    def write(self, rows: Iterable[Row], records: Records, folder: Path, sample_rate: int) -> list[Chapter]:
        """Write the rows in their order. Raises `TtsError`, also when one has no audio; then there is no book."""
        chapters: list[Chapter] = []
        marks: list[Mark] = []
        before: Row | None = None
        with open_writer(self._path, self._format, sample_rate) as writer:
            for row in rows:
                record = records.get(row.id)
                if record is None or record["file"] is None:
                    raise TtsError(f"{shown(self._path)} was not written: row {row.id} has no audio")
                if writer.samples:
                    writer.write(np.zeros(round(self._between(before, row) * sample_rate), np.float32))
                before = row
                start = writer.samples / sample_rate
                for block in _samples(folder / record["file"], row.format, sample_rate):
                    writer.write(block)
                end = writer.samples / sample_rate
                marks += [Mark(start + begin, start + stop, text) for begin, stop, text in record["cues"]]
                _extend(chapters, row, start, end)
        self._write_cue(chapters)
        with whole_file(self.files[2]) as file:
            file.write(json.dumps({"file": self._path.name, "chapters": [vars(chapter) for chapter in chapters]},
                                  ensure_ascii=False, indent=1).encode() + b"\n")
        write_srt(marks, self.files[3])
        return chapters

    def _between(self, before: Row, row: Row) -> float:
        """Seconds of silence."""
        if row.paragraph is None:
            return self._gap
        return self._sentence_gap if row.paragraph == before.paragraph else self._paragraph_gap

    def _write_cue(self, chapters: list[Chapter]) -> None:
        kind = {"mp3": "MP3"}.get(self._format, "WAVE")  # what players expect for all that is not MP3
        lines = [f"FILE {_quoted(self._path.name)} {kind}"]
        for number, chapter in enumerate(chapters, 1):
            seconds, frames = divmod(int(chapter.start * _CUE_RATE), _CUE_RATE)
            lines += [f"  TRACK {number:02d} AUDIO", f"    TITLE {_quoted(chapter.title)}",
                      f"    INDEX 01 {seconds // 60:02d}:{seconds % 60:02d}:{frames:02d}"]
        with whole_file(self.files[1]) as file:
            file.write("\n".join([*lines, ""]).encode())


def _extend(chapters: list[Chapter], row: Row, start: float, end: float) -> None:
    named = row.extra.get("chapter")
    if named is None:
        named = row.text if len(row.text) <= TITLE_CHARS else row.text[:TITLE_CHARS].rsplit(" ", 1)[0] + " …"
    elif chapters and chapters[-1].title == _line(named):
        chapters[-1].end = end
        return
    chapters.append(Chapter(_line(named), start, end))


def _line(title) -> str:
    return " ".join(str(title).split())


def _quoted(title: str) -> str:
    """A cue sheet knows no escapes."""
    return '"' + title.replace('"', "'") + '"'


def _samples(path: Path, format: str, sample_rate: int) -> Iterator[np.ndarray]:
    """float32 blocks of a row's file. Raises `TtsError` when it cannot be read or has another rate."""
    import soundfile

    from tts_cli.audio.read import ForwardReader

    spec = FORMATS[format]
    try:
        if spec.container == "RAW":
            with path.open("rb") as file:
                while data := file.read(_BLOCK * SAMPLE_BYTES[spec.encoding]):
                    yield _floats(np.frombuffer(data, _RAW[spec.encoding]))
            return
        with ForwardReader(path) as file:
            if file.samplerate != sample_rate:
                raise TtsError(f"{shown(path)}: {file.samplerate} Hz where the model speaks at {sample_rate}")
            dtype = "int16" if file.subtype == "PCM_16" else "float32"
            while len(block := file.read(_BLOCK, dtype=dtype)):
                yield _floats(block)
    except (OSError, soundfile.SoundFileError) as error:
        raise TtsError(f"cannot read {shown(path)}: {error}") from None


def _floats(samples: np.ndarray) -> np.ndarray:
    return samples / _FULL_SCALE if samples.dtype == np.int16 else samples
