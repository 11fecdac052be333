"""Clip and transcript are held against each other, and a clip that ends inside a word can be cut at a pause."""

import numpy as np
import pytest

from tts_cli.audio.reference import transcript_warning, trim_to_pause

RATE = 24000


@pytest.mark.parametrize("text, seconds, warns", [
    ("The quick brown fox jumps over the lazy dog.", 3.0, False),
    ("The quick brown fox jumps over the lazy dog.", 1.0, True),
    ("Hi.", 10.0, True),
    ("今天天气很好，我们去公园吧。", 3.0, False),
    ("今天天气很好，我们去公园吧。", 1.0, True),
    ("Съешь же ещё этих мягких французских булок", 3.0, False)])
def test_implausible_transcripts_are_told(text, seconds, warns):
    assert (transcript_warning(text, seconds) is not None) is warns


def tone(seconds):
    return np.sin(np.arange(int(seconds * RATE)) * 0.1).astype(np.float32) * 0.3


def test_a_clip_is_cut_after_its_last_pause():
    pause = np.zeros(int(0.3 * RATE), np.float32)
    clip = np.concatenate((tone(2.0), pause, tone(0.2)))
    cut = trim_to_pause(clip, RATE)
    assert 2.0 <= len(cut) / RATE - 0.5 <= 2.3
    np.testing.assert_array_equal(cut[:2 * RATE], clip[:2 * RATE])
    assert not cut[-RATE // 2:].any()


def test_a_clip_without_a_late_pause_is_kept_whole():
    clip = np.concatenate((tone(0.3), np.zeros(RATE // 2, np.float32), tone(2.0)))
    assert len(trim_to_pause(clip, RATE)) == len(clip) + RATE // 2
    assert len(trim_to_pause(tone(0.001), RATE)) == 24 + RATE // 2
