"""Fixtures shared by the tests: tiny models, written once per session."""

import os
import tempfile
from pathlib import Path

# Before torch is imported: matrices this small are slower with threads, much slower on a busy machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
from factory import tiny_checkpoint, tiny_pair
from tiny_model import EOS_ROW

from tts_cli.compiled import kernels
from tts_cli.engine import SpeechRequest
from tts_cli.gguf.file import GGUFFile
from tts_cli.loading import load_engine


def pytest_sessionstart(session):
    """Compile before the first test: the run that finds nothing compiled says so; which it is must not be chance."""
    if not hasattr(session.config, "workerinput") and not kernels.are_kept():
        with tempfile.TemporaryDirectory() as folder:
            list(load_engine(*tiny_pair(Path(folder)), device="cpu").speak(SpeechRequest("Hi", max_frames=2)))


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    """(talker, mmproj) of a base model with a projection in front of the code predictor."""
    return tiny_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="session")
def pair_equal(tmp_path_factory):
    """(talker, mmproj) of a base model whose predictor is as wide as its talker."""
    return tiny_pair(tmp_path_factory.mktemp("pair_equal"), equal=True)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """Folder of a base model in the published checkpoint layout."""
    return tiny_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def endless(pair, tmp_path_factory):
    """A pair whose greedy speech never ends: the end's score is always 0, and of 2048 others the best is above it."""
    with GGUFFile.open(pair[0]) as file:
        heads = file.rows("output.weight", slice(None))
    heads[EOS_ROW] = 0
    return tiny_pair(tmp_path_factory.mktemp("endless"), talker_edits={"output.weight": np.ascontiguousarray(heads)})


@pytest.fixture(scope="session", autouse=True)
def own_folders(tmp_path_factory):
    """Neither read nor change what the person who runs the tests has cached and set."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
            patch.setenv(variable, str(tmp_path_factory.mktemp(variable.lower())))
        yield


@pytest.fixture(scope="session")
def kokoro(own_folders):
    """The built-in engine with its real weights, which come from the packages of the extra `builtin`."""
    return load_engine("builtin", device="cpu", dtype="float32")
