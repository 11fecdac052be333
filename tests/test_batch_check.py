"""What is refused before a batch begins, and what makes a row sound different: texts, voices, models, names."""

import json
from functools import partial

import fake_speech
import numpy as np
import pytest
from cli_tools import tts
from clips import speech_like
from factory import tiny_pair
from kokoro_folder import kokoro_folder
from test_batch_run import manifest, results

from tts_cli import voice_store
from tts_cli.batch.check import TRIED_BEYOND, Check
from tts_cli.batch.content import model_identity
from tts_cli.batch.manifest import Entry
from tts_cli.batch.rows import Rows
from tts_cli.batch.store import name_digest
from tts_cli.errors import UsageError
from tts_cli.loading import load_engine, open_engine
from tts_cli.model_choice import ModelChoice
from tts_cli.notices import Notices
from tts_cli.utterances import at_most
from tts_cli.voices import Voice


def rows(*texts, **options):
    maker = Rows({}, None, [], fake_speech.FakeEngine(0))
    return [maker.row(Entry(n, {"id": f"r{n}", "text": text, **options})) for n, text in enumerate(texts)]


def test_a_text_that_only_the_model_refuses_is_told_with_its_line(tmp_path):
    run = tts("batch", manifest(tmp_path, [{"id": "a", "text": "Hello."}, {"id": "b", "text": "Hello. \u5728\u5bb6."},
                                           {"id": "c", "text": "\u5728\u5bb6"}]), "-o", tmp_path / "out")
    assert run.code == 2 and "line 3: nothing to speak" in run.err and "line 1" not in run.err
    assert not list((tmp_path / "out").glob("*.wav"))


def test_every_utterance_of_a_text_is_tried():
    engine = fake_speech.FakeEngine(0)
    fine = "A sentence that is long enough to stand alone. " * 3
    with pytest.raises(UsageError, match="no sound"):
        Check(engine, Notices())(rows(f"{fine} This one is {fake_speech.UNSPEAKABLE}.", max_chars=60)[0])
    assert len(engine.checked) > 3


def test_what_is_tried_is_what_the_model_would_speak():
    engine = fake_speech.FakeEngine(0)
    engine.parts = partial(at_most, 40)
    Check(engine, Notices())(rows("A sentence that is not long, but too long for a model of short ones.")[0])
    texts = engine.checked[-2:]
    assert " ".join(texts).endswith("for a model of short ones.") and max(map(len, texts)) <= 40


def test_behind_so_many_characters_some_texts_are_tried():
    engine = fake_speech.FakeEngine(0)
    check = Check(engine, Notices(), tried_chars=20)
    for row in rows(*(f"Ten chars {n}." for n in range(2 * TRIED_BEYOND + 2))):
        check(row)
    texts = [text for text in engine.checked if text != "a"]
    assert texts == ["Ten chars 0.", "Ten chars 1.", f"Ten chars {TRIED_BEYOND + 1}.",
                     f"Ten chars {2 * TRIED_BEYOND + 1}."]


def test_finished_rows_are_not_tried_again(tmp_path, monkeypatch):
    tried = []
    monkeypatch.setattr(fake_speech.FakeEngine, "check", lambda self, request: tried.append(request.text))
    monkeypatch.setattr("tts_cli.cli.batch.ModelChoice", fake_speech.Choice)
    for text, expected in (("One.", ["a", "One.", "One."]), ("One.", []), ("Two.", ["a", "Two.", "Two."])):
        tried.clear()
        run = tts("batch", manifest(tmp_path, [{"id": "x", "text": text}]), "-o", tmp_path / "out")
        # The command line's options, the row's, its text, and that again when it is spoken.
        assert run.code == 0 and tried == ["a", *expected], run.err


def test_a_voice_that_was_saved_anew_is_another_voice(pair, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    width = load_engine(*pair, device="cpu", dtype="float32").voice_from_clip(speech_like(24000), "x").xvector.size
    hashes, saved = [], []
    for seed in (0, 1, 1):
        if seed not in saved:
            if saved:
                voice_store.remove("anna")
            voice_store.save(Voice("anna", np.random.default_rng(seed).normal(size=width).astype(np.float32)))
            saved.append(seed)
        given = [{"id": "one", "text": "Hello there.", "voice": "anna", "max_frames": 3},
                 {"id": "mix", "text": "Hello there.", "voice": "anna:0.5,anna:0.5", "max_frames": 3},
                 {"id": "none", "text": "Hello there.", "max_frames": 3}]
        run = tts("batch", manifest(tmp_path, given), "-o", tmp_path / "out", "-m", pair[0], "--dtype", "float32")
        hashes.append(({name: record["sha256"] for name, record in results(tmp_path / "out").items()}, run.err))
    (first, _), (second, told), (third, finished) = hashes
    assert "2 of 3 rows spoken" in told and first["none"] == second["none"]
    assert first["one"] != second["one"] and first["mix"] != second["mix"]
    assert "0 of 3 rows spoken" in finished and second == third


def test_the_voices_of_kokoro_are_known_by_their_files():
    engine = open_engine("builtin", device="cpu")
    assert [path.name for path in engine.voice_paths("af_heart:0.7, bf_emma")] == [
        engine.voices.path("af_heart").name, engine.voices.path("bf_emma").name]
    with pytest.raises(UsageError, match="nobody"):
        engine.voice_paths("nobody")


def test_another_training_of_a_model_is_another_model(pair, tmp_path):
    def identity(files):
        return model_identity(ModelChoice(tuple(map(str, files)), "cpu", "auto", 1, None), open_engine(*files))
    other = tiny_pair(tmp_path / "other", seed=1)
    assert [path.stat().st_size for path in other] == [path.stat().st_size for path in pair]
    moved = [tmp_path / path.name.replace("tiny", "renamed") for path in pair]
    for source, target in zip(pair, moved, strict=True):
        target.write_bytes(source.read_bytes())
    assert identity(pair) == identity(moved) != identity(other)


def test_another_config_of_a_kokoro_checkpoint_is_another_model(tmp_path):
    def identity(**edits):
        folder = kokoro_folder(tmp_path, **edits)
        return model_identity(ModelChoice((str(folder), None), "cpu", "auto", 1, None), open_engine(folder))
    assert identity() == identity() != identity(max_dur=9)


@pytest.mark.parametrize("one, other", [("a", "A"), ("\u00e9", "e\u0301"), ("\u00c9", "e\u0301"), ("\u212b", "a\u030a"),
                                        ("\u1fb3\u0301", "\u1fb4")])
def test_names_that_some_file_system_takes_for_one(one, other):
    assert name_digest(one) == name_digest(other) != name_digest("b")


@pytest.fixture
def batch(pair, tmp_path):
    def run(path, *arguments):
        return tts("batch", path, "-o", tmp_path, "-m", pair[0], "--dtype", "float32", *arguments)
    return run


def test_a_batch_writes_over_nothing_that_it_reads(batch, tmp_path):
    (tmp_path / "results.jsonl").write_text('{"id": "a", "text": "Hello."}\n')
    (tmp_path / "a.pcm").write_text("Hello there.\n")
    (tmp_path / "b.srt").write_text("Hello there.\n")
    (tmp_path / "c.wav").mkdir()
    (tmp_path / "m.jsonl").write_text(json.dumps({"id": "c", "text": "Hello."}))
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    for path, arguments, told in (
            ("results.jsonl", (), "holds the results"), ("b.srt", ("--join", tmp_path / "b.wav"), "also an input"),
            ("m.jsonl", (), "which is a folder")):
        run = batch(tmp_path / path, *arguments)
        assert run.code == 2 and told in run.err
    (tmp_path / "results.jsonl").write_text("")
    (tmp_path / "a.pcm").rename(tmp_path / "000001.pcm")
    run = batch(tmp_path / "000001.pcm", "--format", "pcm")
    assert run.code == 2 and "would write over 000001.pcm" in run.err
    assert (tmp_path / "000001.pcm").read_bytes() == before[tmp_path / "a.pcm"]
    assert (tmp_path / "b.srt").read_bytes() == before[tmp_path / "b.srt"]


def test_a_clip_is_not_the_book(batch, tmp_path):
    import soundfile

    soundfile.write(tmp_path / "ref.wav", speech_like(24000), 24000)
    before = (tmp_path / "ref.wav").read_bytes()
    (tmp_path / "m.jsonl").write_text(json.dumps({"id": "a", "text": "Hello.", "speaker_file": "ref.wav"}))
    run = batch(tmp_path / "m.jsonl", "--join", tmp_path / "ref.wav")
    assert run.code == 2 and "cannot be an input" in run.err and (tmp_path / "ref.wav").read_bytes() == before


@pytest.mark.parametrize("name, content", [("m.jsonl", "\n"), ("m.txt", "***\n"), ("m.csv", "id,text\n")])
def test_a_manifest_without_a_row(batch, tmp_path, name, content):
    (tmp_path / name).write_text(content)
    run = batch(tmp_path / name)
    assert run.code == 2 and "no row" in run.error


def test_the_library_needs_nothing_of_the_command_line():
    import subprocess
    import sys

    told = subprocess.run([sys.executable, "-c", (
        "import sys, tts_cli.batch.run, tts_cli.batch.check, tts_cli.batch.join, tts_cli.batch.workers\n"
        "print([name for name in sys.modules if name == 'typer' or name.startswith('tts_cli.cli')])")],
        capture_output=True, timeout=60, text=True)
    assert told.stdout.strip() == "[]", told.stderr
