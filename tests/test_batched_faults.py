"""Utterances in turns when a pass is interrupted, and when threads share an engine."""

import threading
from functools import partial

import pytest
from test_batched_steps import engine, requests, spoken  # noqa: F401


def test_a_pass_that_was_interrupted_ends_all_it_was_for(engine, monkeypatch):  # noqa: F811
    """Their caches are ahead of their frames: going on would speak with one left out."""
    speeches = [engine.speak(request) for request in requests(in_turns=True)[:3:2]]
    for speech in speeches:
        next(speech)

    def interrupted(*arguments):
        raise KeyboardInterrupt
    with monkeypatch.context() as patch:
        patch.setattr(engine.models.predictor, "predict", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(speeches[0])
    with pytest.raises(KeyboardInterrupt):
        next(speeches[1])
    assert not engine.models.batch._begun


def test_threads_that_share_an_engine_make_what_one_makes(engine):  # noqa: F811
    alone = [spoken(engine.speak(request)) for request in requests()]
    right = []

    def work(i):
        for _ in range(3):
            right.append(spoken(engine.speak(requests(in_turns=True)[i])) == alone[i])
    threads = [threading.Thread(target=partial(work, i)) for i in range(len(alone))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 15
