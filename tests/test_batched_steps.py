"""Utterances that take turns: each sounds as it does alone, whoever else is there, comes, goes or fails."""

import numpy as np
import pytest
from factory import tiny_pair

from tts_cli.engine import CancelToken, SpeechRequest
from tts_cli.errors import TtsError
from tts_cli.qwen3tts.engine import Qwen3TTSEngine

TEXTS = ["Hello there, my friend.", "Good morning.", "One, two, three and four.", "Here.", "The last of these is long."]


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    engine = Qwen3TTSEngine.open(*tiny_pair(tmp_path_factory.mktemp("pair")), device="cpu")
    engine.load()
    return engine


def requests(**options) -> list[SpeechRequest]:
    """Of unlike lengths and settings."""
    return [SpeechRequest(text, seed=i, max_frames=(9, 4, 13, 1, 7)[i], chunk_frames=(1, 2), greedy=i == 2,
                          temperature=None if i == 2 else .5 + .2 * i, sub_top_k=3 * i, **options)
            for i, text in enumerate(TEXTS)]


def spoken(speech) -> tuple[bytes, bytes, str]:
    return joined(list(speech))


def joined(chunks) -> tuple[bytes, bytes, str]:
    return (np.concatenate([chunk.samples for chunk in chunks]).tobytes(),
            np.concatenate([chunk.codes for chunk in chunks if chunk.codes is not None]).tobytes(),
            chunks[-1].finish_reason)


def in_turns(engine, starts: dict[SpeechRequest, int]) -> dict[SpeechRequest, list]:
    """The chunks of requests that begin at the given turns, and get one chunk at each turn from then on."""
    running, chunks, turn = {}, {}, 0
    while turn <= max(starts.values()) or running:
        for request in [request for request, start in starts.items() if start == turn]:
            running[request], chunks[request] = engine.speak(request), []
        for request, speech in list(running.items()):
            chunk = next(speech, None)
            if chunk is None:
                del running[request]
            else:
                chunks[request].append(chunk)
        turn += 1
    return {request: chunks[request] for request in starts}


@pytest.fixture
def passes(engine, monkeypatch) -> list[int]:
    """Of how many utterances each of the talker's passes made a frame."""
    rows, logits = [], engine.models.talker.logits

    def counted(hidden):
        rows.append(len(hidden))
        return logits(hidden)
    monkeypatch.setattr(engine.models.talker, "logits", counted)
    return rows


@pytest.mark.parametrize("starts", [(0, 0, 0, 0, 0), (0, 3, 1, 5, 2)])
def test_utterances_in_turns_sound_as_alone(engine, starts, passes):
    alone = [spoken(engine.speak(request)) for request in requests()]
    passes.clear()
    together = in_turns(engine, dict(zip(requests(in_turns=True), starts, strict=True)))
    assert [joined(chunks) for chunks in together.values()] == alone
    lengths = [len(codes) // (4 * 16) + (reason == "eos") for _, codes, reason in alone]
    assert sum(passes) == sum(lengths)  # none is made in vain
    assert len(passes) < max(lengths) + len(TEXTS)  # nobody waits for company at the start


def test_alone_in_turns_makes_no_frame_more(engine, passes):
    request = requests()[0]
    alone, steps = spoken(engine.speak(request)), passes.copy()
    passes.clear()
    assert spoken(engine.speak(requests(in_turns=True)[0])) == alone and passes == steps


def test_one_that_is_cancelled_or_left_does_not_disturb_the_others(engine):
    alone = spoken(engine.speak(requests()[0]))
    cancel = CancelToken()
    first, second, third = requests(in_turns=True)[:3]
    speech, cancelled, left = engine.speak(first), engine.speak(second, cancel), engine.speak(third)
    chunks = [next(speech)]
    next(cancelled), next(left)
    chunks.append(next(speech))
    del left
    cancel.cancel()
    assert list(cancelled)[-1].finish_reason == "cancelled"
    assert joined([*chunks, *speech]) == alone
    assert not engine.models.batch._begun


def test_a_fault_belongs_to_those_it_befell(engine, monkeypatch):
    first, second, third = requests(in_turns=True)[:3]
    speeches = [engine.speak(first), engine.speak(second)]
    for speech in speeches:
        next(speech)

    def fault(rows, caches):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(engine.models.talker.decoder, "together", fault)
        for speech in speeches:
            with pytest.raises(MemoryError):
                list(speech)
    assert spoken(engine.speak(third)) == spoken(engine.speak(requests()[2]))


def test_activations_that_are_not_finite_end_one_utterance(engine, monkeypatch):
    first, second = requests(in_turns=True)[:2]
    alone = spoken(engine.speak(requests()[1]))
    speeches = [engine.speak(first), engine.speak(second)]
    chunks = [[next(speech)] for speech in speeches]
    logits = engine.models.talker.logits

    def overflown(hidden):
        result = logits(hidden)
        if len(result) == 2:
            result[1] = float("nan")
        return result
    with monkeypatch.context() as patch:
        patch.setattr(engine.models.talker, "logits", overflown)
        with pytest.raises(TtsError, match="talker"):
            chunks[0] += list(speeches[0])
    assert joined([*chunks[1], *speeches[1]]) == alone
