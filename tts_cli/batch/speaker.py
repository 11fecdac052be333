"""One engine that speaks rows into whole files. Every executor runs this, so a row sounds the same wherever it runs."""

import contextlib
import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from tts_cli.audio.encode import FORMATS
from tts_cli.audio.write import open_writer
from tts_cli.background import Worker
from tts_cli.batch.content import file_sha256
from tts_cli.batch.depot import open_depot
from tts_cli.batch.rows import VOICE_COLUMNS, Row, manner_of
from tts_cli.engine import CancelToken, Engine
from tts_cli.errors import TtsError, UsageError
from tts_cli.model_choice import ModelChoice
from tts_cli.notices import Notices
from tts_cli.reading import Reading
from tts_cli.subtitles import cues

VOICES_KEPT = 64
_CUT = "cut at the automatic limit: the model had not ended the speech"


@dataclass(frozen=True)
class Setup:
    """What an executor needs to make a `Speaker`, on this machine or another.

    where     see `open_depot`
    together  rows that are spoken in turns, see `Engine.together`
    """

    choice: ModelChoice
    where: Path | str | None
    retries: int = 0
    together: int = 1

    @property
    def held(self) -> int:
        """Rows a worker has at a time; at least one is spoken while another is written."""
        return max(2, self.together)


@dataclass(frozen=True)
class Outcome:
    """How a row went.

    record   its line of the results; None when it was cancelled
    data     bytes of its file, where they are still to be written
    fatal    why no further row could succeed either, such as a full disk
    """

    row: Row
    record: dict | None = None
    data: bytes | None = None
    fatal: str | None = None


def failure(row: Row, error: str, attempts: int) -> Outcome:
    """The outcome of a row without audio."""
    return Outcome(row, _record(row, attempts, error=error))


class Speaker:
    """Speaks from several threads; one of them owns the model. Encoding and writing a row overlap the next one.

    `engine`: an open one, by default it is opened here. Raises `TtsError` when there is no such model.
    """

    def __init__(self, setup: Setup, engine: Engine | None = None):
        self._setup, self.held = setup, setup.held
        self._depot = open_depot(setup.where)
        self._worker = Worker()
        self._tokens: set[CancelToken] = set()  # of the rows in work
        self._ended = False
        self._engine = engine or self._worker.call(setup.choice.open, Notices())
        self._worker.call(self._engine.load)
        self._voice = lru_cache(VOICES_KEPT)(self._make_voice)

    def speak(self, row: Row) -> Outcome:
        """Never raises for what is wrong with a row."""
        last = row.attempts + self._setup.retries
        for attempt in range(row.attempts, last + 1):
            path = self._depot.work / (secrets.token_hex(8) + FORMATS[row.format].extensions[0])
            try:
                record = self._make(row, attempt, path)
                if record["error"] is not None and attempt < last and not row.options.get("greedy"):
                    path.unlink()
                    continue
                return self._put(row, record, path)
            except UsageError as error:
                return failure(row, str(error), attempt + 1)
            except Exception as error:
                if self._ended:
                    return Outcome(row)
                if isinstance(error, OSError) or isinstance(error.__cause__, OSError):
                    return Outcome(row, fatal=f"{row.file}: {_told(error)}")
                if attempt == last:
                    return failure(row, _told(error), attempt + 1)
        raise AssertionError("the last attempt returns")

    def cancel(self) -> None:
        """Drop the rows in work and those to come, at once; the model stops when it asks, within a frame or a pass."""
        self._ended = True
        for token in tuple(self._tokens):
            token.cancel()
        self._worker.abandon()

    def close(self) -> None:
        """After the threads that speak have ended: a row given to a model without a thread would wait for ever."""
        self._worker.close()

    def _put(self, row: Row, record: dict, path: Path) -> Outcome:
        try:
            if self._ended:  # another run may have the folder by now
                path.unlink()
                return Outcome(row)
            record["sha256"] = file_sha256(path)
            record["file"], data = self._depot.put(path, row.file)
        except Exception as error:  # also what a package for some kind of URL raises; another seed is no help
            return Outcome(row, fatal=f"cannot write {row.file}: {_told(error)}")
        return Outcome(row, record, data)

    def _make(self, row: Row, attempt: int, path: Path) -> dict:
        """Speak into `path`. Raises `TtsError`, also when it was cancelled; then there is no file."""
        whose = {name: row.options[name] for name in VOICE_COLUMNS if name in row.options}
        voice = self._voice(json.dumps(whose, sort_keys=True))
        manner = manner_of(row.options)
        in_turns = self._setup.together > 1
        request = replace(manner.request, voice=voice, seed=row.seed + attempt, in_turns=in_turns)
        with self._token() as cancel, open_writer(path, row.format, self._engine.sample_rate) as writer:
            reading = self._worker.call(Reading, self._engine, request, manner.pieces(row.text), cancel)
            with self._worker.ahead(reading, cancel, in_turns) as chunks:
                for chunk in chunks:
                    writer.write(chunk.samples)
            if reading.result.finish_reason == "cancelled":
                raise TtsError("cancelled")
        cut = reading.result.finish_reason == "limit" and request.max_frames is None
        record = _record(row, attempt + 1, reading.result, error=_CUT if cut else None)
        shown = cues(reading.words) if reading.words else reading.marks
        record["cues"] = [[round(cue.start, 3), round(cue.end, 3), cue.text] for cue in shown]
        return record | ({"left_out": reading.result.left_out} if reading.result.left_out else {})

    @contextlib.contextmanager
    def _token(self) -> Iterator[CancelToken]:
        """One for each attempt: when a file cannot be written its speech is cancelled, and no other."""
        token = CancelToken()
        self._tokens.add(token)
        try:
            if self._ended:
                token.cancel()
            yield token
        finally:
            self._tokens.discard(token)

    def _make_voice(self, whose: str):
        manner = manner_of(json.loads(whose))
        clip = manner.read_clip(Notices())  # what is not right with it was told when it was checked
        return self._worker.call(manner.voiced, self._engine, clip, Notices()).request.voice


def _record(row: Row, attempts: int, result=None, *, error: str | None) -> dict:
    """A line of the results; `extra` holds the columns that are no options."""
    return {
        "id": row.id, "file": None,
        "seconds": 0.0 if result is None else round(result.audio_seconds, 3),
        "frames": 0 if result is None else result.frames,
        "finish_reason": None if result is None else result.finish_reason,
        "times_real_time": 0.0 if result is None else round(result.times_real_time, 2),
        "sha256": None, "seed": row.seed + attempts - 1, "attempts": attempts, "key": row.key, "error": error,
        **({"extra": row.extra} if row.extra else {})}


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, TtsError) else f"{type(error).__name__}: {error}"
