"""Fixtures shared by the tests: tiny models, written once per session."""

import os

# Before torch is imported: matrices this small are slower with threads, much slower on a busy machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from factory import tiny_checkpoint, tiny_pair


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
