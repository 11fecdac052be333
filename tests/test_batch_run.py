"""`tts batch` in one process: what it writes, what it refuses, how it goes on after whatever ended it."""

import errno
import hashlib
import json
import time

import fake_speech
import numpy as np
import pytest
import soundfile
from cli_tools import tts

from tts_cli.audio import write
from tts_cli.batch.run import Batch
from tts_cli.loading import BUILTIN
from tts_cli.model_choice import DEFAULT_MODEL, ModelChoice
from tts_cli.qwen3tts import plan as qwen3tts

ROWS = [{"id": "a", "text": "Hello there.", "max_frames": 3}, {"id": "b", "text": "And again.", "max_frames": 4},
        {"id": "c", "text": "The last one.", "max_frames": 2, "seed": 5, "format": "flac", "mood": "calm"}]


def manifest(folder, rows):
    (folder / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "m.jsonl"


def results(folder):
    records = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    assert len({record["id"] for record in records}) == len(records)
    return {record["id"]: record for record in records}


@pytest.fixture
def batch(pair, tmp_path):
    """Runs rows into `out`; the same folder each time."""
    def run(rows, *arguments, **streams):
        return tts("batch", manifest(tmp_path, rows), "-o", tmp_path / "out", "-m", pair[0], "--dtype", "float32",
                   *arguments, **streams)
    return run


@pytest.fixture
def cut(monkeypatch):
    """Every utterance reaches its automatic limit after two frames."""
    monkeypatch.setattr(qwen3tts, "BUDGET_BASE", 2)
    monkeypatch.setattr(qwen3tts, "BUDGET_PER_TOKEN", 0)


def test_files_and_results(batch, tmp_path, pair):
    run = batch(ROWS)
    out = tmp_path / "out"
    assert run.code == 0 and "3 of 3 rows spoken" in run.err
    assert sorted(path.name for path in out.iterdir()) == ["a.wav", "b.wav", "c.flac", "results.jsonl"]
    found = results(out)
    for row, file in zip(ROWS, ("a.wav", "b.wav", "c.flac"), strict=True):
        record = found[row["id"]]
        assert record["file"] == file and record["error"] is None and 0 < record["frames"] <= row["max_frames"]
        assert record["sha256"] == hashlib.sha256((out / file).read_bytes()).hexdigest()
        assert record["seconds"] == pytest.approx(soundfile.info(out / file).duration)
        assert record["cues"] == [[0.0, record["seconds"], row["text"]]]
    assert found["c"]["extra"] == {"mood": "calm"} and found["c"]["seed"] == 5
    alone = tts("-m", pair[0], "--dtype", "float32", "-p", ROWS[0]["text"], "-n", "3", "-s", found["a"]["seed"], "-o",
                tmp_path / "alone.wav")
    assert alone.code == 0 and (tmp_path / "alone.wav").read_bytes() == (out / "a.wav").read_bytes()


def test_finished_rows_are_not_spoken_again_and_changed_ones_are(batch, tmp_path):
    batch(ROWS)
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    assert "0 of 3 rows spoken" in batch(ROWS).err
    assert before == {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    (tmp_path / "out" / "b.wav").unlink()
    old = results(tmp_path / "out")
    run = batch([{**ROWS[0], "text": "Something else."}, *ROWS[1:]])
    assert run.code == 0 and "2 of 3 rows spoken" in run.err
    new = results(tmp_path / "out")
    assert old["a"]["sha256"] != new["a"]["sha256"]
    assert old["b"]["sha256"] == new["b"]["sha256"] and old["c"] == new["c"]


@pytest.mark.parametrize("tail", [b'{"id": "c", "fi', b'{"id": "c"}\n', b"\x00\xff\n"])
def test_a_torn_line_costs_its_row_only(batch, tmp_path, tail):
    batch(ROWS[:2])
    with (tmp_path / "out" / "results.jsonl").open("ab") as file:
        file.write(tail)
    run = batch(ROWS)
    assert run.code == 0 and "1 of 3 rows spoken" in run.err and set(results(tmp_path / "out")) == {"a", "b", "c"}


def test_all_problems_are_told_with_their_lines_and_nothing_is_made(batch, tmp_path):
    run = batch([ROWS[0], {"id": "A", "text": "Same file on some systems."}, {"id": "../x", "text": "Out."},
                 {"id": "d", "text": "Hi", "speaker_file": "gone.wav"}, {"id": "e", "text": "Hi", "voice": "nobody"},
                 {"id": "f", "text": "Hi", "temp": -1}, {"id": "g", "text": "?!"},
                 {"id": "h", "text": "Hi", "lang": "xx"},
                 {"id": "i", "text": "Hi", "max_chars": 5}, {"id": "j", "text": "Hi", "speed": 2}])
    lines = run.err.splitlines()
    assert run.code == 2 and not (tmp_path / "out").exists()
    for number, (line, told) in enumerate(zip(lines, (
            "line 1", "cannot name", "gone.wav", "nobody", "temp", "nothing to speak", "'xx'", "max-chars", "speed"),
            strict=True), 2):
        assert f"line {number}: " in line and told in line


def test_an_id_that_is_there_twice_is_told_whatever_else_is_wrong_with_its_rows(batch):
    run = batch([{"id": "a", "text": "Hi", "temp": -1}, {"id": "A", "text": "Hi", "seed": 1, "Seed": 2},
                 {"id": "a", "text": ""}, {"id": "../x", "text": "Hi"}])
    told = [line.partition("m.jsonl, ")[2] for line in run.err.splitlines()]
    assert run.code == 2 and [line[:10] for line in told] == [
        "line 1: --", "line 2: id", "line 2: se", "line 3: id", "line 3: te", "line 4: id"]
    assert "'A' names the file of line 1, too" in told[1] and "line 1, too" in told[3]


def test_the_list_of_problems_ends(batch):
    run = batch([{"id": str(n)} for n in range(60)])
    assert run.code == 2 and run.err.count("\n") == 51 and "10 more problems" in run.err


def test_a_row_cut_at_the_limit_is_tried_with_the_next_seeds_and_told(batch, tmp_path, cut):
    rows = [{"id": "a", "text": "Never ends.", "seed": 7}, {"id": "b", "text": "Asked for.", "max_frames": 2}]
    run = batch(rows, "--retries", "2")
    found = results(tmp_path / "out")
    assert run.code == 4 and "row a (line 1): cut" in run.err and "1 of them failed or cut" in run.err
    assert (found["a"]["attempts"], found["a"]["seed"], found["a"]["finish_reason"]) == (3, 9, "limit")
    assert (tmp_path / "out" / "a.wav").exists() and found["b"]["error"] is None
    run = batch(rows)
    assert run.code == 4 and "1 of 2 rows spoken" in run.err
    assert results(tmp_path / "out")["a"]["seed"] == 10  # the seeds before need not be tried again


def test_a_row_that_fails_is_told_and_the_others_are_spoken(batch, tmp_path, monkeypatch):
    from tts_cli.reading import Reading

    def broken(self, *arguments, real=Reading.__init__):
        real(self, *arguments)
        if self.seed in (1, 2):
            raise ValueError("deep inside")
    monkeypatch.setattr(Reading, "__init__", broken)
    rows = [{**ROWS[0], "seed": 1}, *ROWS[1:]]
    assert batch(rows).code == 4
    found = results(tmp_path / "out")
    assert found["a"]["error"] == "ValueError: deep inside" and found["a"]["file"] is None
    assert found["b"]["error"] is found["c"]["error"] is None
    assert batch(rows, "--retries", "2").code == 0 and results(tmp_path / "out")["a"]["seed"] == 3
    assert not list((tmp_path / "out").glob("**/*.part"))


def test_a_full_disk_ends_the_run_which_goes_on_later(batch, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        def full(self, samples):
            raise OSError(errno.ENOSPC, "No space left on device")
        patch.setattr(write.PcmEncoder, "write", full)
        run = batch(ROWS)
    assert run.code == 1 and "No space left on device" in run.error and "goes on" in run.error
    assert not list((tmp_path / "out").glob("*.wav"))
    assert batch(ROWS).code == 0 and set(results(tmp_path / "out")) == {"a", "b", "c"}


def test_a_long_row_is_read_in_utterances(batch, tmp_path, cut):
    text = "The first sentence is here, it is not short. The second one follows it and is as long."
    batch([{"id": "a", "text": text}], "--max-chars", "50", "--gap", "0.5")
    record = results(tmp_path / "out")["a"]
    assert [cue[:2] for cue in record["cues"]] == [[0.0, 0.16], [0.66, 0.82]] and record["seconds"] == 0.82


def test_a_clip_speaks_for_the_rows_that_name_it(batch, tmp_path):
    soundfile.write(tmp_path / "ref.wav", np.random.default_rng(0).uniform(-0.3, 0.3, 44100), 44100)
    same = {"text": "Hello there.", "max_frames": 3, "seed": 1}
    run = batch([{"id": "a", **same}, {"id": "b", **same, "speaker_file": "ref.wav"},
                 {"id": "c", **same, "speaker_file": "ref.wav"}, {"id": "d", **same, "no_voice": True}])
    hashes = {name: record["sha256"] for name, record in results(tmp_path / "out").items()}
    assert run.code == 0 and hashes["b"] == hashes["c"] and len(set(hashes.values())) == 3


def test_a_row_may_not_write_over_a_clip(batch, tmp_path):
    (tmp_path / "out").mkdir()
    clip = tmp_path / "out" / "b.wav"
    soundfile.write(clip, np.random.default_rng(0).uniform(-0.3, 0.3, 44100), 44100)
    before = clip.read_bytes()
    run = batch([{**ROWS[0], "speaker_file": "out/b.wav"}, ROWS[1]])
    assert run.code == 2 and "line 1" in run.err and "write over it" in run.err and clip.read_bytes() == before


def test_audio_goes_elsewhere(batch, tmp_path):
    run = batch(ROWS, "--audio-to", tmp_path / "shared")
    assert run.code == 0 and results(tmp_path / "out")["a"]["file"] == f"{tmp_path}/shared/a.wav"
    assert sorted(path.name for path in (tmp_path / "shared").iterdir()) == ["a.wav", "b.wav", "c.flac"]
    assert "0 of 3 rows spoken" in batch(ROWS, "--audio-to", tmp_path / "shared").err


@pytest.mark.parametrize("arguments, told", [
    (["-o", "x", "--cpus-per-worker", "2"], "--ray"), (["-o", "x", "--join", "b.wav", "--audio-to", "y"], "--join"),
    ([], "-o DIR"), (["-o", "x", "--by", "line"], "--by"), (["-o", "x", "--temp", "-1"], "--temp"),
    (["-o", "x", "--format", "aiff"], "aiff"), (["-o", "x", "--voice", "a", "--speaker-file", "b"], "exclude")])
def test_options_that_are_refused(pair, tmp_path, monkeypatch, arguments, told):
    monkeypatch.chdir(tmp_path)
    run = tts("batch", manifest(tmp_path, ROWS), "-m", pair[0], *arguments)
    assert run.code == 2 and told in run.err and not (tmp_path / "x").exists()


def test_a_wrong_option_is_told_once_and_then_what_is_wrong_with_the_rows(pair, tmp_path):
    given = [{"id": "a", "text": "Hi"}, {"id": "b", "text": "Hi", "voice": "nobody"}, {"id": "c", "text": ""},
             {"id": "d", "text": "Hi", "format": "mp3", "temp": 1, "max_chars": 90}]
    run = tts("batch", manifest(tmp_path, given), "-m", pair[0], "-o", tmp_path / "out", "--voice", "nobody",
              "--format", "aac", "--temp", "-1", "--max-chars", "5", "--speed", "2")
    lines = run.err.splitlines()
    assert run.code == 2 and len(lines) == 7, run.err
    for line, flag in zip(sorted(lines[:5]), ("--format: 'aac'", "--max-chars: 5", "--speed", "--temp: -1", "--voice"),
                          strict=True):
        assert line.startswith(f"tts: error: {flag}") and line.count("--") == 1
    assert "line 2: there is no saved voice" in lines[5] and "line 3: text: none" in lines[6]


@pytest.mark.parametrize("clip, told", [("gone.wav", "gone.wav: no such"), ("m.jsonl", "m.jsonl")])
def test_a_wrong_clip_is_told_once(batch, tmp_path, monkeypatch, clip, told):
    monkeypatch.chdir(tmp_path)
    run = batch([{**row, "temp": n} for n, row in enumerate(ROWS)], "--speaker-file", clip, "--ref-text", "Words.")
    assert run.code == 2 and "--speaker-file" in run.error and told in run.error


def test_what_is_not_right_with_a_clip_is_told_once(batch, tmp_path):
    soundfile.write(tmp_path / "ref.wav", np.random.default_rng(0).uniform(-0.3, 0.3, 22050), 44100)
    rows = [{**row, "temp": 1 + n} for n, row in enumerate(ROWS)]
    run = batch(rows, "--speaker-file", tmp_path / "ref.wav")
    assert run.code == 0 and run.err.count("the reference clip is short") == 1
    assert "short" not in batch(rows, "--speaker-file", tmp_path / "ref.wav").err


def test_a_folder_that_cannot_be_made(pair, tmp_path):
    (tmp_path / "file").write_text("")
    run = tts("batch", manifest(tmp_path, ROWS), "-m", pair[0], "-o", tmp_path / "file" / "out")
    assert run.code == 1 and "file/out" in run.error


def test_a_run_with_nothing_to_do_says_so_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("tts_cli.cli.batch.ModelChoice", fake_speech.Choice)
    monkeypatch.setattr(fake_speech.Choice, "tell", ModelChoice.tell)
    out = tmp_path / "out"
    first, again = (tts("batch", manifest(tmp_path, ROWS), "-o", out, *more) for more in (["-v"], []))
    assert first.code == again.code == 0 and f"tts: {DEFAULT_MODEL[BUILTIN]}; " in first.err
    assert again.err == f"{out}: 0 of 3 rows spoken, 3 were there already\n"


def test_a_column_that_is_perhaps_misspelt_is_told_once(batch, tmp_path):
    rows = [{**row, "sped": 2, "note": "x"} for row in ROWS]
    run = batch(rows)
    assert run.code == 0 and run.err.count("did you mean") == 1 and results(tmp_path / "out")["a"]["extra"]["sped"] == 2
    assert "tts: warning: column 'sped' is kept, not used; did you mean speed?\n" in run.err


def test_standard_output_stays_empty_and_quiet_is_quiet(batch):
    run = batch(ROWS[:1], "-q")
    assert run.code == 0 and run.out == b"" and run.err == ""


def test_a_terminal_sees_how_far_it_is(batch):
    run = batch(ROWS, terminal=True)
    assert run.code == 0 and "of 3 rows" in run.err and "left" in run.err


def test_a_terminal_sees_how_far_a_long_check_is(batch, monkeypatch):
    plain = Batch._check_file
    monkeypatch.setattr(Batch, "_check_file", lambda *arguments: time.sleep(.6) or plain(*arguments))
    assert "3 rows checked in 00:0" in batch(ROWS, terminal=True).err
    assert "checked" not in batch(ROWS, "--quiet", terminal=True).err + batch(ROWS).err
