"""Files beside the audio: whole or absent, links and pipes left what they are."""

import os
import stat
import threading

import pytest

from tts_cli.errors import TtsError
from tts_cli.files import whole_file


def test_appears_only_when_the_block_ended_well(tmp_path):
    with whole_file(tmp_path / "a") as file:
        file.write(b"one")
        assert not (tmp_path / "a").exists()
    with pytest.raises(ValueError), whole_file(tmp_path / "a") as file:
        file.write(b"two")
        raise ValueError
    assert (tmp_path / "a").read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege there")
def test_a_link_is_followed(tmp_path):
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "link").symlink_to("target")
    with whole_file(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes there")
def test_a_pipe_is_written_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    with whole_file(tmp_path / "pipe") as file:
        file.write(b"through")
    reader.join()
    assert read == [b"through"]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_failure_names_the_path(tmp_path):
    with pytest.raises(TtsError, match="no-folder"), whole_file(tmp_path / "no-folder" / "a"):
        pass
