"""`tts batch --join`: one file with gaps, chapters and subtitles."""

import json

import numpy as np
import pytest
import soundfile
from cli_tools import tts
from test_batch_run import manifest

from tts_cli.audio.read import ForwardReader
from tts_cli.batch import join as join_module

RATE = 24000
ROWS = [{"id": "a", "text": "Hello there.", "max_frames": 3, "chapter": "One"},
        {"id": "b", "text": "And again.", "max_frames": 4, "chapter": "One", "format": "flac"},
        {"id": "c", "text": 'The "last" one.', "max_frames": 2, "chapter": 'Two "quoted"', "format": "pcm"}]


@pytest.fixture
def join(pair, tmp_path):
    def run(rows, name, *arguments):
        return tts("batch", manifest(tmp_path, rows), "-o", tmp_path / "out", "-m", pair[0], "--dtype", "float32",
                   "--join", tmp_path / name, *arguments)
    return run


def audio(folder, name):
    if name.endswith(".pcm"):
        return np.fromfile(folder / "out" / name, "<i2")
    return soundfile.read(folder / "out" / name, dtype="int16")[0]


def test_a_book_holds_the_samples_of_its_rows_in_their_order(join, tmp_path):
    run = join(ROWS, "book.wav", "--gap", "0.5")
    assert run.code == 0 and "2 chapters" in run.err
    parts = [audio(tmp_path, name) for name in ("a.wav", "b.flac", "c.pcm")]
    gap = np.zeros(RATE // 2, np.int16)
    book, rate = soundfile.read(tmp_path / "book.wav", dtype="int16")
    assert rate == RATE and np.array_equal(book, np.concatenate([parts[0], gap, parts[1], gap, parts[2]]))
    ends = np.cumsum([len(part) + len(gap) for part in parts]) / RATE
    chapters = json.loads((tmp_path / "book.json").read_text())["chapters"]
    assert [(c["title"], c["start"], c["end"]) for c in chapters] == [
        ("One", 0, pytest.approx(ends[1] - 0.5)), ('Two "quoted"', pytest.approx(ends[1]), len(book) / RATE)]
    cue = (tmp_path / "book.cue").read_text().splitlines()
    at = divmod(int(ends[1] * 75), 75)
    assert cue[0] == 'FILE "book.wav" WAVE' and cue[-2:] == [
        "    TITLE \"Two 'quoted'\"", f"    INDEX 01 00:{at[0]:02d}:{at[1]:02d}"]
    cues = (tmp_path / "book.srt").read_text().strip().split("\n\n")
    assert [cue.splitlines()[2] for cue in cues] == [row["text"] for row in ROWS]
    assert cues[1].splitlines()[1].startswith(f"00:00:{ends[0]:06.3f}".replace(".", ","))


def test_without_a_column_every_row_is_a_chapter(join, tmp_path):
    rows = [{"id": "b", "text": "word " * 30, "max_frames": 1}, {"id": "a", "text": "Short.", "max_frames": 1}]
    assert join(rows, "book.mp3").code == 0
    chapters = json.loads((tmp_path / "book.json").read_text())["chapters"]
    assert [c["title"] for c in chapters] == ["word " * 11 + "word …", "Short."]
    assert (tmp_path / "book.cue").read_text().startswith('FILE "book.mp3" MP3\n')
    assert soundfile.info(tmp_path / "book.mp3").duration == pytest.approx(0.76, abs=0.1)


@pytest.mark.parametrize("by, arguments, sentence, paragraph", [
    ("sentence", (), 0.25, 0.6), ("sentence", ("--gap", "0.1"), 0.1, 0.6), ("sentence", ("--gap", "0.9"), 0.9, 0.9),
    ("line", ("--gap", "0.1"), 0.1, 0.1), ("line", (), 0.6, 0.6)])
def test_pauses_between_sentences_and_paragraphs(pair, tmp_path, by, arguments, sentence, paragraph):
    (tmp_path / "m.txt").write_text("One more.\nTwo more.\n\nThree more.\n")
    run = tts("batch", tmp_path / "m.txt", "--by", by, "-o", tmp_path / "out", "-m", pair[0], "--dtype", "float32",
              "-n", "2", "--join", tmp_path / "book.wav", *arguments)
    assert run.code == 0, run.err
    chapters = json.loads((tmp_path / "book.json").read_text())["chapters"]
    gaps = [after["start"] - before["end"] for before, after in zip(chapters, chapters[1:], strict=False)]
    assert gaps == [pytest.approx(sentence), pytest.approx(paragraph)]


def test_a_later_run_joins_what_is_there(join, tmp_path):
    assert join(ROWS, "a.wav").code == join(ROWS, "b.wav").code == 0
    assert (tmp_path / "a.wav").read_bytes() == (tmp_path / "b.wav").read_bytes()


def test_a_book_with_a_hole_is_not_written(join, tmp_path, monkeypatch):
    from tts_cli.reading import Reading

    def broken(self, engine, request, *arguments, real=Reading.__init__):
        real(self, engine, request, *arguments)
        if request.max_frames == 4:
            raise ValueError("deep inside")
    monkeypatch.setattr(Reading, "__init__", broken)
    run = join(ROWS, "book.wav")
    assert run.code == 4 and "row b has no audio" in run.err and not list(tmp_path.glob("book.*"))


@pytest.mark.parametrize("name, code, told", [
    ("out/a.wav", 2, "--join"), ("no/book.wav", 1, "does not exist"), ("book.aiff", 2, "extension")])
def test_books_that_are_refused(join, tmp_path, name, code, told):
    (tmp_path / "out").mkdir()
    run = join(ROWS, name)
    assert run.code == code and told in run.err and not list((tmp_path / "out").glob("*.wav"))


def test_a_long_row_of_mp3_is_read_without_noise_at_borders(tmp_path, capfd):
    """libsndfile must not seek between blocks: a frame of MP3 leans on those before it."""
    samples = np.random.default_rng(0).uniform(-0.3, 0.3, 12 * 24000).astype(np.float32)
    soundfile.write(tmp_path / "a.mp3", samples, 24000)
    with ForwardReader(tmp_path / "a.mp3") as file:
        expected = file.read(len(samples) + 1, dtype="float32")
    blocks = list(join_module._samples(tmp_path / "a.mp3", "mp3", 24000))
    assert len(blocks) > 2 and np.array_equal(np.concatenate(blocks), expected)
    assert capfd.readouterr().err == ""
