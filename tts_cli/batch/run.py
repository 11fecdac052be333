"""A batch from its manifest to its results: everything checked, then every row that is not finished spoken once."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from tts_cli.batch.dispatch import Crew, outcomes
from tts_cli.batch.manifest import Problem, read_manifest
from tts_cli.batch.rows import Row, Rows, identity_of
from tts_cli.batch.store import Store, name_digest
from tts_cli.errors import TtsError, UsageError

PROBLEMS_SHOWN = 50


@dataclass
class Survey:
    """What a manifest holds. `seconds`: of the speech that is still to be made, roughly."""

    rows: int = 0
    pending: int = 0
    seconds: float = 0.0
    kept: set[str] = field(default_factory=set)  # columns that are no options
    problems: list[Problem] = field(default_factory=list)
    more_problems: int = 0

    def add_problem(self, line: int, message: object) -> None:
        if len(self.problems) < PROBLEMS_SHOWN:
            self.problems.append(Problem(line, str(message)))
        else:
            self.more_problems += 1


@dataclass
class Tally:
    """How a batch goes."""

    spoken: int = 0
    failed: int = 0
    shortened: int = 0  # words that the model does not read were left out
    seconds: float = 0.0


class Batch:
    """One manifest and its folder.

    by        how plain text is divided, see `read_manifest`
    check     refuses a row that is to be spoken by raising `UsageError`
    reserved  files that no row may write over and that cannot be its input, besides the manifest
    """

    def __init__(self, manifest: Path, by: str | None, rows: Rows, store: Store, check: Callable[[Row], None],
                 reserved: Iterable[Path] = ()):
        self._manifest, self._by, self._rows, self._store, self._check = manifest, by, rows, store, check
        self._reserved = {path.resolve() for path in (manifest, *reserved)}
        here = store.folder.resolve()
        self._reserved_names = {name_digest(path.name) for path in self._reserved if path.parent == here}

    def survey(self, checks: Callable[[], object] = lambda: None) -> Survey:
        """Check every row, and tell the store which will be spoken. Memory grows by a digest for each id.

        checks  called for every row
        """
        survey, seen, inputs = Survey(), {}, {}
        for entry in read_manifest(self._manifest, self._by):
            checks()
            if isinstance(entry, Problem):
                survey.add_problem(entry.line, entry.message)
                continue
            survey.rows += 1
            if (identity := identity_of(entry)) is not None and (
                    first := seen.setdefault(name_digest(identity), entry.line)) != entry.line:
                survey.add_problem(entry.line, f"id: {identity!r} names the file of line {first}, too")
            try:
                row = self._rows.row(entry)
                self._check_file(row)
                if not (finished := self._store.is_finished(row)):
                    self._check(row)
            except UsageError as error:
                survey.add_problem(entry.line, error)
                continue
            survey.kept |= row.extra.keys()
            inputs |= dict.fromkeys(row.inputs, row.line)
            if not finished:
                self._store.forget(row)
                survey.pending += 1
                survey.seconds += row.seconds
        for path, line in inputs.items():
            if path.parent == self._store.folder.resolve() and name_digest(path.stem) in seen:
                survey.add_problem(line, f"{path}: a row with the id {path.stem!r} would write over it")
            if path in self._reserved:
                survey.add_problem(line, f"{path}: this run writes it, so it cannot be an input")
        return survey

    def _check_file(self, row: Row) -> None:
        if self._reserved_names and name_digest(row.file) in self._reserved_names:
            raise UsageError(f"id: {row.id!r} would write over {row.file}, the manifest or the file of --join")
        if (self._store.folder / row.file).is_dir():
            raise UsageError(f"id: {row.id!r} names the file {row.file}, which is a folder in {self._store.folder}")

    def speak(self, crew: Crew, tally: Tally, told: Callable[[Row, dict], None] = lambda row, record: None) -> None:
        """Speak what is not finished, counted in `tally`; `told` hears of every row.

        Raises `TtsError` when no row could succeed.
        """
        self._store.tidy()
        for outcome in outcomes(self._pending(), crew):
            if outcome.fatal is not None:
                raise TtsError(f"{outcome.fatal}; what is finished is kept, the same command goes on from there")
            if outcome.record is None:
                raise TtsError(f"row {outcome.row.id} was dropped; the same command goes on from there")
            if outcome.data is not None:
                self._store.take(outcome.row.file, outcome.data)
            self._store.add(outcome.record)
            tally.spoken += 1
            tally.failed += outcome.record["error"] is not None
            tally.shortened += "left_out" in outcome.record
            tally.seconds += outcome.record["seconds"]
            told(outcome.row, outcome.record)

    def rows(self) -> Iterator[Row]:
        """All rows in order. Raises `UsageError` when the manifest was changed since it was checked."""
        for entry in read_manifest(self._manifest, self._by):
            if isinstance(entry, Problem):
                raise UsageError(f"{self._manifest}, {entry}; the manifest was changed while it was read")
            yield self._rows.row(entry)

    def _pending(self) -> Iterator[Row]:
        for row in self.rows():
            if not self._store.is_finished(row):
                yield replace(row, attempts=self._store.attempts(row))
