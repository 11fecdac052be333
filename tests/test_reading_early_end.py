"""A reading of several utterances side by side that ends before its time."""

import pytest
from test_batched_steps import engine  # noqa: F401
from test_reading import Tones

from tts_cli.engine import CancelToken, SpeechRequest
from tts_cli.errors import TtsError
from tts_cli.reading import Reading
from tts_cli.utterances import Utterance


@pytest.mark.parametrize("how", ["fault", "cancel", "closed"])
def test_a_reading_that_ends_early_leaves_no_frame_begun(engine, how, monkeypatch):  # noqa: F811
    """Though it is kept: else the next speech of this engine would make those frames with its own."""
    cancel = CancelToken()
    pieces = [Utterance(text, 3.0) for text in ("A.", "Hello there, my friend.", "One, two, three.", "Good morning.")]
    reading = Reading(engine, SpeechRequest("", seed=3), pieces, cancel, 4)
    while next(reading).codes is not None:
        pass  # into the silence behind the first
    assert engine.models.batch._begun
    if how == "fault":
        push, faults = engine.models.code2wav.push, [ZeroDivisionError]

        def once(*arguments):
            if faults:
                raise faults.pop()
            return push(*arguments)
        monkeypatch.setattr(engine.models.code2wav, "push", once)
        with pytest.raises(ZeroDivisionError):
            list(reading)
    elif how == "cancel":
        cancel.cancel()
        assert list(reading)[-1].finish_reason == "cancelled"
    else:
        reading._chunks.close()
    assert not engine.models.batch._begun


@pytest.mark.parametrize("together", [1, 4])
def test_a_text_that_fails_does_so_when_all_before_was_read(together):
    def pieces():
        yield from (Utterance("abc", 0.0), Utterance("de", 0.0))
        raise TtsError("no more text")
    reading, heard = Reading(Tones(), SpeechRequest("", seed=1), pieces(), together=together), 0
    with pytest.raises(TtsError, match="no more text"):
        for chunk in reading:
            heard += chunk.samples.size
    assert heard == 5 * 80
