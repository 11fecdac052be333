"""`tts --lines`: every line of standard input is spoken as it arrives; the next one is made while one is heard."""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tts_cli.background import Ahead, Worker
from tts_cli.cli.console import Console, error_line, one_interrupt
from tts_cli.cli.run import NAMES, ready, report
from tts_cli.cli.sinks import Outputs, Sinks, open_sinks
from tts_cli.cli.sources import files_of
from tts_cli.engine import CancelToken, Engine
from tts_cli.errors import TtsError, UsageError
from tts_cli.manner import Manner
from tts_cli.model_choice import ModelChoice
from tts_cli.text import MAX_TEXT_BYTES, clean_text, decode_text
from tts_cli.utterances import estimate_seconds

EXIT_SOME_LINES_FAILED = 1


@dataclass(frozen=True)
class _Line:
    """A line being spoken, from the moment it is made."""

    number: int
    text: str
    reading: object
    chunks: Ahead
    cancel: CancelToken


def speak_lines(choice: ModelChoice, manner: Manner, outputs: Outputs, output_dir: str | None,
                console: Console) -> int:
    """Until standard input ends. A line that cannot be spoken is told and left out; then the exit code is 1."""
    if sys.stdin is None:
        raise UsageError("standard input is closed; --lines reads texts from it")
    if output_dir is not None and outputs.path is not None:
        raise UsageError("--output and --output-dir exclude each other; give one of them")
    outputs, name = _check(outputs, output_dir, manner, choice)
    clip = manner.read_clip(console)
    with contextlib.ExitStack() as stack:
        stack.enter_context(one_interrupt())
        worker, reader = stack.enter_context(Worker()), stack.enter_context(Worker())
        given = stack.enter_context(reader.ahead(_read_lines(), CancelToken()))
        engine = worker.call(ready, choice, manner, "a", outputs, console)
        manner = worker.call(manner.voiced, engine, clip, console)
        shared = None
        if outputs.path is not None:  # one output holds all lines
            shared = stack.enter_context(open_sinks(replace(outputs, play=False), engine.sample_rate, console))
        run = _Run(engine, worker, manner, outputs, name, shared, console)
        code = run.speak_all(given)
        if shared is not None:
            shared.finish([])
    return code


def _check(outputs: Outputs, output_dir: str | None, manner: Manner, choice: ModelChoice) -> tuple[Outputs, str]:
    """Outputs with a format, and the pattern of the files' names ("" without --output-dir)."""
    inputs = [manner.speaker_file, *files_of(choice.pair)]
    if output_dir is None:
        return outputs.checked(inputs), ""
    from tts_cli.audio.encode import FORMATS

    if outputs.format not in (None, *FORMATS):
        raise UsageError(f"--format: {outputs.format!r} is unknown, choose one of {', '.join(FORMATS)}")
    extension = FORMATS[outputs.format or "wav"].extensions[0]
    folder = Path(output_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TtsError(f"--output-dir {output_dir}: {error.strerror}") from None
    first = str(folder / f"0001{extension}")
    replace(outputs, path=first).checked(inputs)
    return outputs, str(folder).replace("{", "{{").replace("}", "}}") + f"/{{:04d}}{extension}"


def _read_lines() -> Iterator[tuple[int, bytes]]:
    number = 0
    while line := sys.stdin.buffer.readline(MAX_TEXT_BYTES + 1):
        number += 1
        yield number, line


class _Run:
    """What stays the same from line to line."""

    def __init__(self, engine: Engine, worker: Worker, manner: Manner, outputs: Outputs, name: str,
                 shared: Sinks | None, console: Console):
        self._engine, self._worker, self._manner = engine, worker, manner
        self._outputs, self._name, self._shared, self._console = outputs, name, shared, console
        self._failed = False

    def speak_all(self, given: Ahead) -> int:
        codes = []
        line = self._started(lambda: next(given, None))
        while line is not None:
            with line.chunks, open_sinks(self._outputs_of(line), self._engine.sample_rate, self._console,
                                         estimate_seconds(line.text)) as sinks:
                for chunk in line.chunks:
                    if self._shared is not None:
                        self._shared.write(chunk)
                    sinks.write(chunk, line.cancel)
                sinks.finish(line.reading.marks, line.reading.words)
                # What is there already is being made while this line is heard.
                following = self._started(given.poll)
                sinks.drain(line.cancel)
            path = self._outputs_of(line).path or self._outputs.path
            codes.append(report(line.reading, self._manner.request, sinks, self._console,
                                f"line {line.number}, {NAMES.get(path, path)}"))
            line = following or self._started(lambda: next(given, None))
        return EXIT_SOME_LINES_FAILED if self._failed else max(codes, default=0)

    def _started(self, take) -> _Line | None:
        """The next line that can be spoken, its making under way; None when `take` has no more."""
        while (taken := take()) is not None:
            number, raw = taken
            if not raw.strip():
                continue
            try:
                return self._start(number, raw)
            except UsageError as error:
                self._failed = True
                error_line(f"line {number}: {error}")
        return None

    def _start(self, number: int, raw: bytes) -> _Line:
        from tts_cli.reading import Reading

        if len(raw) > MAX_TEXT_BYTES:
            raise UsageError(f"longer than {MAX_TEXT_BYTES >> 20} MiB")
        text = clean_text(decode_text(raw, "standard input"))
        cancel = CancelToken()
        reading = Reading(self._engine, self._manner.request, self._manner.pieces(text), cancel,
                          self._outputs.together(self._engine))
        return _Line(number, text, reading, self._worker.ahead(reading, cancel), cancel)

    def _outputs_of(self, line: _Line) -> Outputs:
        if self._name:
            path = self._name.format(line.number)
            return replace(self._outputs, path=path, format=self._outputs.format or "wav")
        return replace(self._outputs, path=None, format=None)
