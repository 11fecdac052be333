"""Subtitle files: exact times, safe text, whole files."""

import pytest

from tts_cli.errors import TtsError
from tts_cli.reading import Mark
from tts_cli.subtitles import write_srt, write_vtt

MARKS = [Mark(0.0, 1.2345, "Hello,\nworld."), Mark(1.4845, 3661.9996, "Grüße 你好 <b> & c --> d")]


def test_srt(tmp_path):
    path = tmp_path / "ü b.srt"
    write_srt(MARKS, path)
    assert path.read_bytes().decode() == (
        "1\n00:00:00,000 --> 00:00:01,234\nHello, world.\n\n"
        "2\n00:00:01,484 --> 01:01:02,000\nGrüße 你好 <b> & c → d\n\n")


def test_vtt(tmp_path):
    path = tmp_path / "a.vtt"
    write_vtt(MARKS, path)
    assert path.read_bytes().decode() == (
        "WEBVTT\n\n"
        "00:00:00.000 --> 00:00:01.234\nHello, world.\n\n"
        "00:00:01.484 --> 01:01:02.000\nGrüße 你好 &lt;b&gt; &amp; c --&gt; d\n\n")


def test_long_text_is_wrapped_and_never_holds_an_empty_line(tmp_path):
    path = tmp_path / "a.srt"
    text = "word " * 30 + "\n \n" + "x" * 60 + " well-known"
    write_srt([Mark(0, 1, text)], path)
    lines = path.read_text("utf-8").split("\n\n")[0].split("\n")[2:]
    assert " ".join(lines) == " ".join(text.split())
    assert all(0 < len(line) <= 42 or line == "x" * 60 for line in lines)


@pytest.mark.parametrize("write, empty", [(write_srt, ""), (write_vtt, "WEBVTT\n\n")])
def test_no_marks(tmp_path, write, empty):
    write([], tmp_path / "a")
    assert (tmp_path / "a").read_text("utf-8") == empty


@pytest.mark.parametrize("write", [write_srt, write_vtt])
def test_an_older_file_stays_when_the_work_fails(tmp_path, write):
    path = tmp_path / "a"
    path.write_text("old", "utf-8")

    def marks():
        yield MARKS[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(marks(), path)
    assert path.read_text("utf-8") == "old" and list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(TtsError, match="cannot write .*No such file"):
        write_srt(MARKS, tmp_path / "none" / "a.srt")
