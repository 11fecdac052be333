"""Whatever ends a batch, the folder it leaves is whole and the next run goes on: signals, torn results, two at once."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import fake_speech
import psutil
import pytest
import soundfile
from test_batch_run import manifest, results
from test_cli_process import environment

from tts_cli.batch.content import file_sha256
from tts_cli.batch.rows import Row
from tts_cli.batch.store import Store
from tts_cli.errors import TtsError, UsageError

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals and locks of POSIX")
TESTS = str(Path(fake_speech.__file__).parent)
SHORT = [{"id": f"s{n}", "text": f"Short {n}."} for n in range(4)]
LONG = [{"id": f"l{n}", "text": f"Long {n}, {fake_speech.FOR_EVER}."} for n in range(4)]


def started(folder, rows, *arguments):
    """A batch with the fake engine, in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", fake_speech.TTS, "batch", manifest(folder, rows), "-o", folder / "out", *arguments],
        env=environment(PYTHONPATH=os.pathsep.join([environment()["PYTHONPATH"], TESTS])), stderr=subprocess.PIPE)


def until(condition, process):
    """Wait for it, while the process runs."""
    deadline = time.monotonic() + 60
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            pytest.fail(process.communicate()[1].decode())
        time.sleep(0.02)


def lines(folder):
    """Complete lines of the results so far."""
    path = folder / "out" / "results.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def in_work(folder):
    """Files that are being spoken."""
    return sum(path.stat().st_size > 44 for path in (folder / "out" / ".tts-batch").glob("*.part"))


def finish_short(folder):
    """In a run before: a worker holds two rows, and the endless one of them may come to its model first."""
    assert started(folder, SHORT).wait(60) == 0


def workers_of(process):
    return [child for child in psutil.Process(process.pid).children() if "spawn_main" in " ".join(child.cmdline())]


def hashes(folder):
    return {name: record["sha256"] for name, record in results(folder / "out").items()}


def whole(folder):
    """All that has a final name is an audio file of a line that says so; returns the ids."""
    found = {record["file"]: record for record in map(json.loads, filter(
        lambda line: line.endswith("\n"), (folder / "out" / "results.jsonl").open()))}
    for path in (folder / "out").glob("*.wav"):
        assert soundfile.info(path).frames == 4 * fake_speech.CHUNK
        assert path.name not in found or found[path.name]["sha256"] == file_sha256(path)
    return {record["id"] for record in found.values()}


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_next_run_goes_on(tmp_path, ending):
    finish_short(tmp_path)
    process = started(tmp_path, [*SHORT, LONG[0]])
    until(lambda: in_work(tmp_path), process)
    process.send_signal(ending)
    process.send_signal(ending)  # as people do
    process.communicate(timeout=60)
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[ending]
    assert whole(tmp_path) == {row["id"] for row in SHORT} and len(list((tmp_path / "out").glob("*.wav"))) == 4
    assert (tmp_path / "out" / ".tts-batch").exists() == (ending == signal.SIGKILL)
    again = started(tmp_path, [*SHORT, {**LONG[0], "text": "Short now."}])
    assert "1 of 5 rows spoken" in again.communicate(timeout=60)[1].decode() and again.returncode == 0
    assert set(results(tmp_path / "out")) == {*(row["id"] for row in SHORT), "l0"}
    assert not (tmp_path / "out" / ".tts-batch").exists()


def test_killed_again_and_again_it_comes_to_its_end(tmp_path):
    rows = [{"id": f"r{n}", "text": f"Row {n}."} for n in range(12)]
    kills = 0
    while True:
        before = lines(tmp_path)
        process = started(tmp_path, rows, "--dtype", "0.02")
        until(lambda process=process, before=before: lines(tmp_path) >= before + 3 or process.poll() == 0, process) \
            if before < 12 else process.wait()
        if before >= 9:
            break
        process.kill()
        process.communicate()
        kills += 1
        assert before + 3 <= len(whole(tmp_path)) <= 12
    assert process.communicate(timeout=60)[1] is not None and process.returncode == 0 and kills >= 2
    assert whole(tmp_path) == {row["id"] for row in rows} == set(results(tmp_path / "out"))


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_outlives_the_run(tmp_path, ending):
    finish_short(tmp_path)
    process = started(tmp_path, [*SHORT, *LONG], "--workers", "2")
    until(lambda: in_work(tmp_path) == 2, process)
    workers = workers_of(process)
    assert len(workers) == 2
    process.send_signal(ending)
    process.communicate(timeout=60)
    assert process.returncode == (130 if ending == signal.SIGINT else -9)
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive and whole(tmp_path) == {row["id"] for row in SHORT}


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupted_run_waits_for_no_row_and_says_how_far_it_is(tmp_path, workers):
    finish_short(tmp_path)
    process = started(tmp_path, [*SHORT, *LONG], "--workers", str(workers), "--dtype", "600")  # seconds for a chunk
    until(lambda: len(list((tmp_path / "out" / ".tts-batch").glob("*.part"))) >= workers, process)
    process.send_signal(signal.SIGINT)
    told = process.communicate(timeout=60)[1].decode().splitlines()
    assert process.returncode == 130
    assert [line for line in told if line] == [
        f"{tmp_path / 'out'}: 4 of 8 rows are done; the same command goes on", "tts: interrupted"]


def test_rows_of_a_killed_worker_are_spoken_as_one_process_speaks_them(tmp_path):
    rows = [{"id": f"r{n}", "text": f"Row {n}."} for n in range(30)]
    (tmp_path / "one").mkdir()
    one = started(tmp_path / "one", rows)
    many = started(tmp_path, rows, "--workers", "2", "--dtype", "0.01")
    until(lambda: lines(tmp_path) >= 2, many)
    os.kill(workers_of(many)[0].pid, signal.SIGKILL)
    assert [one.communicate(timeout=60)[0], many.communicate(timeout=60)[0]] == [None, None]
    assert one.returncode == many.returncode == 0 and hashes(tmp_path / "one") == hashes(tmp_path)
    assert not (tmp_path / "out" / ".tts-batch").exists()


# ---- the store ------------------------------------------------------------------------------------------------------

def row(identity, key=1):
    return Row(1, identity, "Hello.", {}, {}, f"{key:032x}", 0)


def record(identity, key=1, **changes):
    return {"id": identity, "file": f"{identity}.wav", "error": None, "attempts": 1, "finish_reason": "eos", "cues": [],
            "key": f"{key:032x}", **changes}


def test_one_batch_at_a_time_even_when_its_results_were_replaced(tmp_path):
    with Store(tmp_path) as store:
        with pytest.raises(UsageError, match="another tts batch"):
            Store(tmp_path)
        store.add(record("a"))
    with Store(tmp_path) as store:
        store.forget(row("a", key=2))
        store.tidy()
        assert (tmp_path / "results.jsonl").read_bytes() == b""
        with pytest.raises(UsageError, match="another tts batch"):
            Store(tmp_path)
        store.add(record("b"))
    with Store(tmp_path) as store, store.records() as records:
        assert records.get("a") is None and records.get("b") == record("b")


def test_results_torn_at_any_byte_cost_the_torn_line_only(tmp_path):
    names = ("a", "b")
    whole_lines = [json.dumps(record(name)).encode() + b"\n" for name in names]
    for name in names:
        (tmp_path / f"{name}.wav").write_bytes(b"audio")
    content = b"".join(whole_lines)
    for size in (0, 1, *range(len(whole_lines[0]) - 1, len(content) + 1)):
        (tmp_path / "results.jsonl").write_bytes(content[:size])
        with Store(tmp_path) as store:
            finished = [name for name in names if store.is_finished(row(name))]
            assert finished == list(names[:size // len(whole_lines[0])])
            store.tidy()
            assert (tmp_path / "results.jsonl").read_bytes() == b"".join(whole_lines[:len(finished)])


@pytest.mark.parametrize("damage", [
    b"[" * 100_000, b'"a"', b"[]", b"null", b'{"id": 5, "key": "00"}', b"\x00" * 50, b"\xff",
    *(json.dumps(record("a") | change).encode() for change in (
        {"id": 5}, {"key": 5}, {"key": "x"}, {"attempts": "1"}, {"attempts": -1}, {"file": 5}, {"cues": None}))])
def test_lines_that_nobody_wrote_are_left_out(tmp_path, damage):
    (tmp_path / "results.jsonl").write_bytes(damage + b"\n" + json.dumps(record("b")).encode() + b"\n")
    (tmp_path / "a.wav").write_bytes(b"audio")
    (tmp_path / "b.wav").write_bytes(b"audio")
    with Store(tmp_path) as store, store.records() as records:
        assert store.is_finished(row("b")) and not store.is_finished(row("a")) and records.get("a") is None


def test_the_file_of_another_text_goes_with_its_line_and_nothing_else_does(tmp_path):
    kept, outside = tmp_path / "out" / "mine.wav", tmp_path / "outside.wav"
    (tmp_path / "out").mkdir()
    for path in (kept, outside, tmp_path / "out" / "a.wav"):
        path.write_bytes(b"audio")
    with Store(tmp_path / "out") as store:
        for line in (record("a"), record("b", file="../outside.wav"), record("c", file=str(outside))):
            store.add(line)
    with Store(tmp_path / "out") as store:
        for identity in "abc":
            store.forget(row(identity, key=2))
        store.tidy()
    assert kept.exists() and outside.exists() and not (tmp_path / "out" / "a.wav").exists()


def test_a_row_is_finished_where_its_file_lies(tmp_path):
    (tmp_path / "a.wav").write_bytes(b"audio")
    with Store(tmp_path) as store:
        store.add(record("a"))
        store.add(record("b", file="s3://bucket/x/b.wav"))
    for remote, finished in ((None, "a"), ("s3://bucket/x", "b"), ("s3://bucket/x/", "b"), ("s3://bucket/y", "")):
        with Store(tmp_path, remote=remote) as store:
            assert "".join(name for name in "ab" if store.is_finished(row(name))) == finished


def test_what_was_made_and_is_empty_goes_again(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "results.jsonl").write_text("")
    for folder in ("new/and/deep", "mine", "old"):
        with Store(tmp_path / folder), pytest.raises(UsageError):
            Store(tmp_path / folder)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        "mine", "old", "old/results.jsonl"]
    with Store(tmp_path / "new" / "deep") as store:
        (tmp_path / "new" / "other").write_text("of somebody else")
    assert not store.folder.exists() and (tmp_path / "new" / "other").exists()
    with Store(store.folder) as store:
        store.add(record("a"))
    assert (store.folder / "results.jsonl").stat().st_size


def test_text_without_bytes_is_kept_as_its_escape(tmp_path):
    with Store(tmp_path) as store, store.records() as empty:
        store.add(record("a", extra={"note": "é\ud800"}))
        assert empty.get("a") is None
        with store.records() as records:
            assert records.get("a")["extra"] == {"note": "é\ud800"}
    assert "é\\ud800" in (tmp_path / "results.jsonl").read_text(encoding="utf-8")


@pytest.mark.parametrize("make, told", [
    (lambda out: out.write_text(""), "no folder"), (lambda out: (out / "results.jsonl").mkdir(parents=True), "no file"),
    (lambda out: (out.mkdir(), os.mkfifo(out / "results.jsonl")), "no file"),
    (lambda out: out.symlink_to(out.parent / "nowhere" / "x"), "out")])
def test_folders_that_are_none(tmp_path, make, told):
    make(tmp_path / "out")
    with pytest.raises(TtsError, match=told):
        Store(tmp_path / "out")
