"""The voice does not depend on how the clip was stored: the same x-vector at every rate and in every container."""

import io

import numpy as np
import pytest
import soundfile
from clips import cosine, speech_like

from tts_cli.audio.read import read_clip
from tts_cli.loading import open_engine

RATE = 24000
# Room tone at -60 dBFS, as every recording has: bands of digital zero would make codec noise look enormous in the log.
RECORDING = speech_like(RATE) + np.random.default_rng(0).normal(0, 1e-3, len(speech_like(RATE))).astype(np.float32)


@pytest.fixture(scope="module")
def engine(pair):
    talker, mmproj = pair
    return open_engine(talker, mmproj, device="cpu", dtype="float32")


def xvector(engine, samples, rate=RATE, container="WAV", subtype="PCM_16") -> np.ndarray:
    data = io.BytesIO()
    soundfile.write(data, samples, rate, format=container, subtype=subtype)
    return engine.voice_from_clip(read_clip(data.getvalue()), "clip").xvector


@pytest.fixture(scope="module")
def original(engine):
    return xvector(engine, RECORDING, subtype="FLOAT")


def test_other_clips_give_other_voices(engine, original):
    """Without this the comparisons below would say nothing."""
    noise = np.random.default_rng(0).uniform(-0.3, 0.3, RATE).astype(np.float32)
    assert cosine(xvector(engine, noise), original) < 0.98
    assert cosine(xvector(engine, speech_like(RATE, pitch=210.0)), original) < 0.999


@pytest.mark.parametrize("rate", [8000, 11025, 16000, 22050, 44100, 48000, 96000])
def test_the_same_clip_at_another_rate(engine, rate):
    assert cosine(xvector(engine, speech_like(rate), rate), xvector(engine, speech_like(RATE))) >= 0.999


@pytest.mark.parametrize("container, subtype", [
    ("WAV", "PCM_16"), ("WAV", "PCM_24"), ("WAV", "PCM_32"), ("WAV", "DOUBLE"), ("WAVEX", "PCM_24"),
    ("FLAC", "PCM_16"), ("FLAC", "PCM_24")])
def test_the_same_clip_in_a_lossless_container(engine, original, container, subtype):
    assert cosine(xvector(engine, RECORDING, RATE, container, subtype), original) >= 0.999


@pytest.mark.parametrize("container, subtype", [
    ("WAV", "PCM_U8"), ("WAV", "ALAW"), ("WAV", "ULAW"), ("MP3", "MPEG_LAYER_III"), ("OGG", "VORBIS"),
    ("OGG", "OPUS")])
def test_the_same_clip_in_a_lossy_container(engine, original, container, subtype):
    assert cosine(xvector(engine, RECORDING, RATE, container, subtype), original) >= 0.98


def test_both_channels_of_a_stereo_clip(engine, original):
    stereo = np.stack([RECORDING] * 2, axis=1)
    assert cosine(xvector(engine, stereo), original) >= 0.999
