"""The loop that hands out rows, with workers that die; and the processes that speak them."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
from collections import deque

import psutil
import pytest
from cli_tools import tts
from test_batch_run import manifest, results, until
from test_cli_process import TTS, environment

from tts_cli.batch import dispatch
from tts_cli.batch.dispatch import HELD, LIVES, Event, outcomes
from tts_cli.batch.rows import Row
from tts_cli.batch.speaker import Outcome
from tts_cli.errors import TtsError


def rows(count):
    return [Row(n, f"r{n}", "Hello.", {}, {}, f"{n:032x}", n) for n in range(count)]


class Crew:
    """Workers that speak what they are given one after the other, last comer first; `deadly` rows kill them."""

    def __init__(self, size, deadly=(), stillborn=False):
        self.size, self._deadly, self._stillborn = size, deadly, stillborn
        self._numbers = itertools.count()
        self._events = deque()
        self.held = {}
        self.most = 0

    def start(self):
        worker = next(self._numbers)
        self.held[worker] = []
        self._events.append(Event(worker, gone="no model" if self._stillborn else None))
        return worker

    def give(self, worker, row):
        self.held[worker].append(row)
        self.most = max(self.most, sum(map(len, self.held.values())))

    def events(self):
        if self._events:
            return [self._events.popleft()]
        worker = max(self.held, key=lambda one: len(self.held[one]))
        row = self.held[worker].pop()
        if row.id in self._deadly:
            self.held[worker].clear()
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
        assert given <= len(seen) + size * HELD + 1
    assert sorted(seen) == sorted(row.id for row in rows(50)) and crew.most == size * HELD


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

MANY = [{"id": f"r{n}", "text": f"Sentence number {n} is spoken.", "max_frames": 2 + n % 3} for n in range(12)]


def run(pair, folder, given, *arguments):
    return tts("batch", manifest(folder, given), "-o", folder / "out", "-m", pair[0], "--dtype", "float32", *arguments)


def hashes(folder):
    return {name: record["sha256"] for name, record in results(folder).items()}


@contextlib.contextmanager
def two_at_work(endless, tmp_path, short=2):
    """A batch of two processes, when both speak a row of 9999 frames and have another one waiting."""
    long = {"text": "Long.", "max_frames": 9999, "greedy": True}
    given = [*MANY[:short], *({"id": f"long{n}", **long} for n in range(4))]
    process = subprocess.Popen(
        [*TTS, "batch", str(manifest(tmp_path, given)), "-o", str(tmp_path / "out"), "-m", str(endless[0]), "--dtype",
         "float32", "--workers", "2"], env=environment(), stderr=subprocess.PIPE)
    try:
        until(lambda: (tmp_path / "out" / "results.jsonl").exists() and len(results(tmp_path / "out")) == short
              and sum(p.stat().st_size > 44 for p in (tmp_path / "out" / ".tts-batch").glob("*.part")) == 2, process)
        yield process, workers_of(process)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def workers_of(process):
    return [child for child in psutil.Process(process.pid).children() if "spawn_main" in " ".join(child.cmdline())]


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_processes_write_the_bytes_that_one_writes_though_one_is_killed(pair, tmp_path):
    given = [{**row, "max_frames": 60, "greedy": True} for row in MANY]
    (tmp_path / "one").mkdir()
    assert run(pair, tmp_path / "one", given).code == 0
    process = subprocess.Popen(
        [*TTS, "batch", str(manifest(tmp_path, given)), "-o", str(tmp_path / "out"), "-m", str(pair[0]), "--dtype",
         "float32", "--workers", "2"], env=environment(), stderr=subprocess.PIPE)
    until(lambda: (tmp_path / "out" / "results.jsonl").exists() and len(results(tmp_path / "out")) >= 1, process)
    os.kill(workers_of(process)[0].pid, signal.SIGKILL)
    assert process.communicate(timeout=60)[0] is None and process.returncode == 0
    assert hashes(tmp_path / "out") == hashes(tmp_path / "one" / "out")
    assert not (tmp_path / "out" / ".tts-batch").exists()


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_run(endless, tmp_path, ending):
    with two_at_work(endless, tmp_path) as (process, workers):
        assert len(workers) == 2
        process.send_signal(ending)
        process.wait(timeout=60)
        psutil.wait_procs(workers, timeout=30)
        assert not any(worker.is_running() for worker in workers)
        assert process.returncode == (130 if ending == signal.SIGINT else -9)
    assert len(results(tmp_path / "out")) == 2 and len(list((tmp_path / "out").glob("*.wav"))) == 2
    assert json.loads((tmp_path / "out" / "results.jsonl").read_text().splitlines()[-1])["error"] is None
