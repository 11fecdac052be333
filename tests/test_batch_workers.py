"""The loop that hands out rows, with workers that die; and the processes that speak them."""

import itertools
from collections import deque

import fake_speech
import psutil
import pytest
from cli_tools import tts
from test_batch_run import manifest, results

from tts_cli.batch import dispatch
from tts_cli.batch.dispatch import LIVES, Event, outcomes
from tts_cli.batch.rows import Row
from tts_cli.batch.speaker import Outcome, Setup, Speaker
from tts_cli.batch.store import Store
from tts_cli.batch.workers import Pool
from tts_cli.errors import TtsError
from tts_cli.qwen3tts import batched_steps


def rows(count):
    return [Row(n, f"r{n}", "Hello.", {}, {}, f"{n:032x}", n) for n in range(count)]


class Crew:
    """Workers that speak what they are given one after the other, last comer first; `deadly` rows kill them."""

    held = 2

    def __init__(self, size, deadly=(), stillborn=False):
        self.size, self._deadly, self._stillborn = size, deadly, stillborn
        self._numbers = itertools.count()
        self._events = deque()
        self.given = {}
        self.most = 0

    def start(self):
        worker = next(self._numbers)
        self.given[worker] = []
        self._events.append(Event(worker, gone="no model" if self._stillborn else None))
        return worker

    def give(self, worker, row):
        self.given[worker].append(row)
        self.most = max(self.most, sum(map(len, self.given.values())))

    def events(self):
        if self._events:
            return [self._events.popleft()]
        worker = max(self.given, key=lambda one: len(self.given[one]))
        row = self.given[worker].pop()
        if row.id in self._deadly:
            self.given[worker].clear()
            return [Event(worker, gone="signal 9")]
        return [Event(worker, Outcome(row, {"error": None}))]


@pytest.mark.parametrize("size", [1, 3])
def test_every_row_comes_back_once_and_few_are_held(size):
    given = 0

    def lazily():
        nonlocal given
        for row in rows(50):
            given += 1
            yield row
    crew, seen = Crew(size), []
    for outcome in outcomes(lazily(), crew):
        seen.append(outcome.row.id)
        assert given <= len(seen) + size * Crew.held + 1
    assert sorted(seen) == sorted(row.id for row in rows(50)) and crew.most == size * Crew.held


def test_rows_of_a_dead_worker_are_spoken_by_others_and_a_deadly_one_is_given_up():
    found = {outcome.row.id: outcome.record for outcome in outcomes(rows(20), Crew(2, deadly=("r0", "r7")))}
    assert len(found) == 20
    failed = {name: record["error"] for name, record in found.items() if record["error"] is not None}
    assert failed.keys() == {"r0", "r7"} and failed["r7"] == f"its worker died {LIVES} times: signal 9"


def test_workers_that_never_start_end_the_run():
    with pytest.raises(TtsError, match="no model"):
        list(outcomes(rows(3), Crew(2, stillborn=True)))


def test_no_worker_is_started_for_nothing(monkeypatch):
    monkeypatch.setattr(dispatch, "STARTS", 0)
    assert list(outcomes([], Crew(1, stillborn=True))) == []


# ---- processes ------------------------------------------------------------------------------------------------------

def test_processes_write_the_bytes_that_one_writes(pair, tmp_path):
    given = [{"id": f"r{n}", "text": f"Sentence number {n} is spoken.", "max_frames": 2 + n % 3} for n in range(6)]
    hashes = []
    for name, workers in (("one", 1), ("two", 2)):
        done = tts("batch", manifest(tmp_path, given), "-o", tmp_path / name, "-m", pair[0], "--dtype", "float32",
                   "--workers", workers)
        assert done.code == 0, done.err
        hashes.append({identity: record["sha256"] for identity, record in results(tmp_path / name).items()})
    assert hashes[0] == hashes[1] and len(hashes[0]) == 6


def test_rows_in_turns_are_the_same_files(tmp_path, pair, monkeypatch):
    """One process speaks several rows side by side, and more of them are not begun."""
    given = [{"id": f"r{i}", "text": "One more row. " * (1 + i % 3), "seed": i} for i in range(7)]
    hashes, most = [], []
    talker_pass = batched_steps.read_frames
    monkeypatch.setattr(batched_steps, "read_frames", lambda begun: (most.append(len(begun)), talker_pass(begun)))
    for together in (4, 1):
        monkeypatch.setattr("tts_cli.qwen3tts.engine.TOGETHER", together)
        done = tts("batch", manifest(tmp_path, given), "-o", tmp_path / str(together), "-m", pair[0], "-t", "1")
        assert done.code == 0, done.err
        hashes.append({identity: record["sha256"] for identity, record in results(tmp_path / str(together)).items()})
        assert max(most) == 4
    assert hashes[0] == hashes[1] and len(hashes[0]) == 7


def fake(dtype):
    return fake_speech.Choice(None, "cpu", dtype, 1, None)


def test_a_worker_without_its_model_ends_the_run(tmp_path):
    with (Store(tmp_path) as store, Pool(Setup(fake("gone"), store.folder), 1, 1) as crew,
          pytest.raises(TtsError, match="no model here")):
        list(outcomes(rows(2), crew))


def test_a_worker_that_has_no_model_yet_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr("tts_cli.batch.workers.END_SECONDS", 600)
    with Pool(Setup(fake("never"), tmp_path), 1, 1) as crew:
        crew.start()
        (pid,) = crew.pids()
    assert not psutil.pid_exists(pid)


def test_one_that_ends_drops_what_it_has_not_put_in_its_place(tmp_path):
    """Another run may have the folder by then."""
    with Store(tmp_path) as store:
        speaker = Speaker(Setup(fake("auto"), store.folder))
        assert speaker.speak(rows(1)[0]).record["error"] is None
        (tmp_path / "r0.wav").unlink()
        whole = speaker._make

        def ended(*arguments):
            made = whole(*arguments)
            speaker.cancel()
            return made
        speaker._make = ended
        assert speaker.speak(rows(1)[0]).record is None
        speaker.close()
        assert not (tmp_path / "r0.wav").exists() and not list(store.work.iterdir())
