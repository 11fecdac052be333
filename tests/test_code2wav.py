"""The vocoder is a stream: any chunking gives the samples of one pass, and always 1920 of them per frame."""

import copy

import numpy as np
import pytest
import torch

from tts_cli.loading import load_engine
from tts_cli.qwen3tts.codec import open_codec
from tts_cli.qwen3tts.layers import StreamState

FRAMES = 340  # several attention windows of 72


@pytest.fixture(scope="module", params=["tensors", "stored"])
def code2wav(request, pair):
    """As `tts codec` loads it, and as it speaks on the CPU, multiplying with the file's own bytes."""
    if request.param == "tensors":
        return open_codec(pair[1], device="cpu").code2wav
    return load_engine(*pair, device="cpu", dtype="float32").models.code2wav


@pytest.fixture(scope="module")
def codes():
    return torch.from_numpy(np.random.RandomState(3).randint(0, 2048, (FRAMES, 16)))


@pytest.fixture(scope="module")
def whole(code2wav, codes):
    with torch.inference_mode():
        return code2wav.push(codes, StreamState())


@pytest.mark.parametrize("size", [1, 2, 3, 8, 72, 300])
def test_chunks_equal_one_pass(code2wav, codes, whole, size):
    state = StreamState()
    with torch.inference_mode():
        streamed = torch.cat([code2wav.push(part, state) for part in codes.split(size)])
    assert streamed.shape == whole.shape == (FRAMES * 1920,)
    assert (streamed - whole).abs().max() <= 1e-5
    assert whole.std() > 1e-3  # equality of silence would prove nothing


def test_later_frames_do_not_change_earlier_samples(code2wav, codes, whole):
    other = codes.clone()
    other[5:] = (other[5:] + 1) % 2048
    with torch.inference_mode():
        changed = code2wav.push(other[:10], StreamState())
    assert (changed[:5 * 1920] - whole[:5 * 1920]).abs().max() <= 1e-5
    assert (changed[5 * 1920:] - whole[5 * 1920:10 * 1920]).abs().max() > 1e-3


def test_state_can_be_copied_and_streams_interleaved(code2wav, codes, whole):
    state = StreamState()
    with torch.inference_mode():
        code2wav.push(codes[:100], state)
        fork = copy.deepcopy(state)
        code2wav.push((codes[:20] + 7) % 2048, fork)  # a second stream goes its own way
        rest = code2wav.push(codes[100:120], state)
    assert (rest - whole[100 * 1920:120 * 1920]).abs().max() <= 1e-5


def test_state_does_not_grow_with_the_stream(code2wav, codes):
    def size(state):
        parts = (*state.keys.values(), *state.values.values(), *state.tails.values())
        return sum(t.untyped_storage().nbytes() for t in parts)

    state = StreamState()
    with torch.inference_mode():
        code2wav.push(codes[:80], state)
        early = size(state)
        code2wav.push(codes[80:], state)
    assert size(state) == early
