"""What `tts batch` does when it is called: survey, speak, join, and tell how it goes."""

import contextlib
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from tts_cli.audio import shown
from tts_cli.batch.check import Check
from tts_cli.batch.content import model_identity
from tts_cli.batch.join import Book
from tts_cli.batch.local import Local
from tts_cli.batch.manifest import read_manifest
from tts_cli.batch.rows import Rows, meant
from tts_cli.batch.run import Batch, Tally
from tts_cli.batch.speaker import Setup, Speaker
from tts_cli.batch.store import RESULTS, Store
from tts_cli.batch.workers import Pool
from tts_cli.cli.console import Console, error_line
from tts_cli.errors import TtsError, UsageError
from tts_cli.model_choice import ModelChoice, use_threads
from tts_cli.notices import Notices

EXIT_PROBLEMS = 2
EXIT_SOME_ROWS_FAILED = 4


@dataclass(frozen=True)
class Place:
    """Where rows are spoken, and where their audio goes."""

    workers: int | None
    ray: str | None
    cpus: float
    gpus: float
    audio_to: str | None


class BatchRun:
    """One call of `tts batch`; options by their column names."""

    def __init__(self, manifest: Path, by: str | None, folder: Path, join: str | None, choice: ModelChoice,
                 defaults: dict, retries: int, place: Place, console: Console):
        self._manifest, self._by, self._folder, self._join = manifest, by, folder, join
        self._choice, self._defaults, self._retries, self._console = choice, defaults, retries, console
        self._place = place
        self._book = None

    def run(self) -> int:
        if str(self._manifest) == "-":
            raise UsageError("a manifest is read more than once, so it cannot be standard input; give a file")
        if self._manifest.resolve() == (self._folder / RESULTS).resolve():
            raise UsageError(f"{shown(self._manifest)} holds the results of -o {shown(self._folder)}; "
                             "give the manifest another name, or another -o")
        read_manifest(self._manifest, self._by)  # refuses
        if self._join is not None:
            self._book = Book(self._join, self._defaults["gap"], [self._manifest])
        engine = self._choice.open(self._console)
        # Rows are then seen without those that are wrong, which are told once.
        defaults, wrong = Check(engine, Notices()).defaults(self._defaults)
        for problem in wrong:
            error_line(problem)
        with Store(self._folder, remote=self._place.audio_to) as store:
            rows = Rows(defaults, self._manifest.parent, model_identity(self._choice, engine), engine)
            batch = Batch(self._manifest, self._by, rows, store, Check(engine, self._console),
                          self._book.files if self._book else ())
            with self._checking() as checks:
                survey = batch.survey(checks)
            if survey.problems or wrong:
                return self._refuse(survey)
            if not survey.rows:
                raise UsageError(f"{shown(self._manifest)} holds no row to speak")
            self._tell_of_columns(survey.kept)
            if survey.pending:
                self._choice.tell(self._console, engine)
            tally, wall = self._speak(batch, survey, engine)
            self._report(survey, tally, wall)
            if self._book is not None:
                self._bind(batch, store, engine, tally)
            return EXIT_SOME_ROWS_FAILED if tally.failed else 0

    def _tell_of_columns(self, kept: set[str]) -> None:
        """Of those that are no options; one that is nearly called so was perhaps to be one."""
        for column in sorted(kept):
            if option := meant(column):
                self._console.warning(f"column {column!r} is kept, not used; did you mean {option}?")
        if kept:
            self._console.detail(f"columns kept as they are: {', '.join(sorted(kept))}")

    def _bind(self, batch, store, engine, tally) -> None:
        try:
            with store.records() as records:
                chapters = self._book.write(batch.rows(), records, self._folder, engine.sample_rate)
        except TtsError as error:
            if not tally.failed:
                raise
            self._console.warning(error)
        else:
            self._console.note(f"{shown(self._join)}: {len(chapters)} chapter{'s' if len(chapters) > 1 else ''}")

    def _speak(self, batch, survey, engine):
        """(tally, seconds that it took)"""
        tally, started = Tally(), time.perf_counter()
        if survey.pending:
            try:
                with self._crew(engine, survey.pending) as crew, self._progress(survey, tally) as told:
                    started = time.perf_counter()
                    batch.speak(crew, tally, told)
            except (KeyboardInterrupt, SystemExit):  # Ctrl-C, SIGTERM
                done = survey.rows - survey.pending + tally.spoken - tally.failed
                self._console.note(f"{shown(self._folder)}: {done} of {survey.rows} rows are done; "
                                   "the same command goes on")
                raise
        return tally, time.perf_counter() - started

    def _crew(self, engine, rows: int):
        """Who speaks: a cluster, processes, or this process with the engine that is open already."""
        place = self._place
        setup = Setup(self._choice.named(), place.audio_to or self._folder.resolve(), self._retries, engine.together)
        if place.ray is not None:
            from tts_cli.batch.cluster import Cluster, Share, connect, room

            share = Share(place.cpus, place.gpus)
            connect(place.ray)
            return Cluster(replace(setup, where=place.audio_to), min(place.workers or room(share), rows), share)
        if (workers := min(place.workers or 1, rows)) == 1:
            return Local(Speaker(setup, engine))
        self._warn_of_memory(engine, workers)
        return Pool(setup, workers, use_threads(self._choice.threads))

    def _warn_of_memory(self, engine, workers: int) -> None:
        """The weights of one process are about as large as its files."""
        import psutil

        needed = workers * sum(path.stat().st_size for path in engine.paths if path.exists())
        free = psutil.virtual_memory().available
        if needed > free:
            self._console.warning(f"{workers} workers need about {needed / 1e9:.1f} GB for the model, "
                                  f"{free / 1e9:.1f} GB are free; fewer --workers may be faster")

    @contextlib.contextmanager
    def _checking(self):
        """On a terminal, how many rows were checked, where that takes more than a second."""
        from tqdm import tqdm

        with tqdm(disable=not self._console.shows_progress, file=sys.stderr, leave=False, delay=1, mininterval=0.2,
                  bar_format="{n} rows checked in {elapsed}") as bar:
            yield bar.update

    @contextlib.contextmanager
    def _progress(self, survey, tally):
        """Tells of failed rows; on a terminal a bar over seconds of audio, with an estimate of the time left."""
        from tqdm import tqdm

        with tqdm(total=round(survey.seconds, 1), disable=not self._console.shows_progress, file=sys.stderr,
                  leave=False, mininterval=0.2,
                  bar_format="{percentage:3.0f}%|{bar}| {elapsed}, {remaining} left{postfix}") as bar:
            started = time.perf_counter()

            def told(row, record) -> None:
                if record["error"] is not None:
                    with bar.external_write_mode(file=sys.stderr):
                        self._console.warning(f"row {row.id} (line {row.line}): {record['error']}")
                speed = tally.seconds / max(time.perf_counter() - started, 1e-9)
                bar.set_postfix_str(f"{tally.spoken} of {survey.pending} rows, {tally.seconds:.0f} s of audio, "
                                    f"{speed:.2f} x real time", refresh=False)
                bar.update(row.seconds)
            yield told

    def _refuse(self, survey) -> int:
        for problem in survey.problems:
            error_line(f"{shown(self._manifest)}, {problem}")
        if survey.more_problems:
            error_line(f"{shown(self._manifest)}: {survey.more_problems} more problems")
        return EXIT_PROBLEMS

    def _report(self, survey, tally, wall: float) -> None:
        audio = (f", {tally.seconds:.2f} s of audio in {wall:.1f} s ({tally.seconds / wall:.2f} x real time)"
                 if tally.spoken else "")
        skipped = survey.rows - survey.pending
        self._console.note(f"{shown(self._folder)}: {tally.spoken} of {survey.rows} rows spoken{audio}"
                           + (f", {skipped} were there already" if skipped else "")
                           + (f", words left out in {tally.shortened}: see results.jsonl" if tally.shortened else "")
                           + (f", {tally.failed} of them failed or cut: see results.jsonl" if tally.failed else ""))
