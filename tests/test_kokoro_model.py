"""Durations, source and vocoder keep the promises of the architecture, on random weights."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_kokoro import TINY, plain_spectrum, tiny_kokoro

from tts_cli.errors import ModelFileError
from tts_cli.kokoro.config import KokoroConfig
from tts_cli.kokoro.prosody import frames_per_token
from tts_cli.kokoro.source import harmonics

IDS = torch.tensor([3, 1, 7, 7, 2])


@pytest.fixture(scope="module")
def model():
    return tiny_kokoro()


@pytest.fixture(scope="module")
def style():
    return torch.randn(2 * TINY.style, generator=torch.Generator().manual_seed(8))


def noise(seed=0):
    return torch.Generator().manual_seed(seed)


def test_600_samples_per_frame_and_a_duration_for_every_token_and_pad(model, style):
    samples, durations = model(IDS, style, 1.0, noise())
    assert durations.shape == (len(IDS) + 2,) and durations.dtype == torch.int64 and durations.min() >= 1
    assert samples.shape == (600 * int(durations.sum()),) and samples.dtype == torch.float32
    assert samples.isfinite().all() and samples.std() > 1e-3
    assert TINY.samples_per_frame == KokoroConfig().samples_per_frame == 600 and model.sample_rate == 24000


def test_one_id_is_enough(model, style):
    samples, durations = model(IDS[:1], style, 4.0, None)
    assert len(samples) == 600 * durations.sum() and samples.isfinite().all()


def test_the_same_seed_gives_the_same_bytes_another_other_noise(model, style):
    first, again, other, silent = (model(IDS, style, 1.0, g)[0] for g in (noise(1), noise(1), noise(2), None))
    assert torch.equal(first, again)
    assert (first - other).abs().max() > 1e-4 and (first - silent).abs().max() > 1e-4
    assert torch.equal(silent, model(IDS, style, 1.0, None)[0])


def test_the_first_half_of_a_style_is_timbre_the_second_prosody(model, style):
    timbre, prosody = style.clone(), style.clone()
    timbre[:TINY.style] *= -1
    prosody[TINY.style:] *= -3
    samples, durations = model(IDS, style)
    other, same = model(IDS, timbre)
    assert torch.equal(durations, same) and (other - samples).abs().max() > 1e-3
    assert not torch.equal(durations, model(IDS, prosody)[1])


def test_the_source_hears_the_whole_f0_curve_and_the_vocoder_all_of_the_decoder(model, style, monkeypatch):
    heard = {}
    for name in ("source", "decoder", "generator"):
        module = getattr(model, name)
        def spy(*args, name=name, forward=module.forward):
            heard[name] = args, forward(*args)
            return heard[name][1]
        monkeypatch.setattr(module, "forward", spy)
    frames = int(model(IDS, style)[1].sum())
    (asr, f0, energy, timbre), features = heard["decoder"]
    assert asr.shape == (frames, TINY.hidden) and f0.shape == energy.shape == (2 * frames,)
    assert heard["source"][0][0] is f0
    assert torch.equal(timbre, style[:TINY.style])
    assert features.shape == (2 * frames, TINY.istftnet.channels)
    assert heard["source"][1].shape == (120 * frames + 1, 22)


@pytest.mark.parametrize(("total", "speed", "frames"), [
    (0.2, 1, 1), (1.5, 1, 2), (2.5, 1, 2), (3.5, 1, 4), (5, 2, 2), (7, 2, 4), (2.5, 0.25, 10), (6, 4, 2)])
def test_durations_divide_by_speed_then_round_halves_to_even_and_are_at_least_one(total, speed, frames):
    values = torch.full((1, 8), total / 8, dtype=torch.float64)
    logits = torch.log(values / (1 - values))
    assert frames_per_token(logits, speed).tolist() == [frames]


def test_harmonics_equal_the_definition_after_a_minute():
    """Phase in turns at the middle of each step, in float64, interpolated with numpy."""
    steps = 60 * 80
    f0 = 150 + 100 * torch.sin(torch.arange(steps) / 30)
    ours = harmonics(f0, 300)
    middle = 300 * np.arange(steps) + 149.5
    for h in (1, 5, 9):
        turns = np.cumsum(h * f0.double().numpy() / 24000 % 1) * 300
        expected = np.sin(2 * np.pi * np.interp(np.arange(300 * steps), middle, turns))
        assert np.abs(ours[h - 1].numpy() - expected).max() <= 2e-4


def test_a_steady_tone_has_its_frequency_between_the_outer_half_steps():
    tone = harmonics(torch.full((40,), 200.0), 300)[0]
    inner = tone[150:-150]
    assert torch.allclose(inner[:-120], inner[120:], atol=1e-4)  # 24000 / 200 samples
    assert (tone[:150] == tone[0]).all() and (tone[-150:] == tone[-1]).all()


@pytest.mark.parametrize(("hz", "voiced"), [(0, False), (9.9, False), (10.0, False), (10.1, True), (300, True)])
def test_voiced_is_more_than_10_hz(model, hz, voiced):
    f0 = torch.full((6,), hz)
    silent = (model.source.signal(f0, None) == model.source.mix.bias.tanh()).all()
    assert bool(silent) is not voiced


@pytest.mark.parametrize(("hz", "deviation"), [(0.0, 0.1 / 3), (50.0, 0.003)])
def test_noise_is_quiet_under_a_voice_and_loud_without(model, hz, deviation):
    f0 = torch.full((400,), hz)
    difference = model.source.signal(f0, noise()).atanh() - model.source.signal(f0, None).atanh()
    assert float(difference.std()) == pytest.approx(deviation * float(model.source.mix.weight.norm()), rel=0.02)


def test_the_vocoder_step_by_step(model, style):
    """LeakyReLU 0.1 before the upsamplings and 0.01 at the end, the mirrored moment, the means of blocks."""
    g = torch.Generator().manual_seed(9)
    x, har = 3 * torch.randn(14, TINY.istftnet.channels, generator=g), torch.randn(14 * 60 + 1, 22, generator=g)
    timbre = style[:TINY.style]
    before = x.clone(), har.clone()
    spectrum = model.generator.spectrum(x, timbre, har)
    assert torch.equal(x, before[0]) and torch.equal(har, before[1])
    expected = plain_spectrum(model.generator, x, timbre, har)
    assert (spectrum - expected).abs().max() <= 3e-5 * expected.abs().max()
    magnitude, phase = spectrum[:, :11].exp(), spectrum[:, 11:].sin()
    frames = np.fft.irfft((magnitude * torch.exp(1j * phase)).numpy(), 20, axis=1)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(20) / 20)
    total, weight = np.zeros(5 * len(frames) + 15), np.zeros(5 * len(frames) + 15)
    for i, frame in enumerate(frames):
        total[5 * i:5 * i + 20] += frame * window
        weight[5 * i:5 * i + 20] += window**2
    expected = (total / np.maximum(weight, 1e-9))[10:10 + 14 * 300]
    samples = model.generator.inverse(spectrum).numpy()
    assert samples.shape == (14 * 300,)
    assert np.abs(samples - expected).max() <= 1e-5 * np.abs(expected).max()


def test_bfloat16_convolutions_change_neither_durations_nor_the_sound_by_much(style):
    model = tiny_kokoro()
    exact, durations = model(IDS, style, 1.0, noise())
    model.convolve_in(torch.bfloat16)
    kinds = {name: p.dtype for name, p in model.named_parameters() if p.dtype != torch.float32}
    assert kinds and all(name.startswith(("decoder.", "generator.stages.")) for name in kinds)
    rounded, same = model(IDS, style, 1.0, noise())
    assert rounded.dtype == torch.float32 and torch.equal(durations, same)
    difference = (rounded - exact).norm() / exact.norm()
    assert 0 < difference < 0.1
    model.convolve_in(torch.float32)
    assert all(p.dtype == torch.float32 for p in model.parameters())


PUBLISHED = {
    "n_token": 178, "hidden_dim": 512, "style_dim": 128, "n_layer": 3, "max_dur": 50, "text_encoder_kernel_size": 5,
    "dim_in": 64, "max_conv_dim": 512, "multispeaker": True, "n_mels": 80, "dropout": 0.2,
    "plbert": {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 2048, "dropout": 0.1,
               "max_position_embeddings": 512, "num_hidden_layers": 12},
    "istftnet": {"upsample_rates": [10, 6], "upsample_kernel_sizes": [20, 12], "upsample_initial_channel": 512,
                 "resblock_kernel_sizes": [3, 7, 11], "resblock_dilation_sizes": [[1, 3, 5]] * 3,
                 "gen_istft_n_fft": 20, "gen_istft_hop_size": 5},
    "vocab": {";": 1, "ə": 83}}


def test_the_published_config_is_the_default():
    assert KokoroConfig.from_dict(PUBLISHED) == replace(KokoroConfig(), vocab={";": 1, "ə": 83})
    assert KokoroConfig().max_ids == 510


def edited(path, value):
    """A copy of PUBLISHED with one key, "section.key", set or (None) left out."""
    raw = {key: dict(item) if isinstance(item, dict) else item for key, item in PUBLISHED.items()}
    *section, key = path.split(".")
    place = raw[section[0]] if section else raw
    if value is None:
        del place[key]
    else:
        place[key] = value
    return raw


@pytest.mark.parametrize(("path", "value", "says"), [
    ("hidden_dim", None, "hidden_dim is missing"),
    ("istftnet", None, "istftnet is missing"),
    ("istftnet", [1], "istftnet must be an object"),
    ("n_token", 0, "n_token = 0 must be a whole number"),
    ("n_token", 178.0, "n_token = 178.0 must be a whole number"),
    ("n_layer", True, "n_layer = True must be a whole number"),
    ("hidden_dim", 10**12, "hidden_dim = 1000000000000 must be"),
    ("plbert.num_hidden_layers", 1000, "plbert: num_hidden_layers = 1000 must be a whole number from 1 to 64"),
    ("plbert.num_attention_heads", 7, "multiple of num_attention_heads"),
    ("istftnet.upsample_rates", [10], "as many"),
    ("istftnet.upsample_rates", [], "list of 1 to 16"),
    ("istftnet.upsample_rates", [10, "6"], "upsample_rates = 6 must be"),
    ("istftnet.upsample_kernel_sizes", [20, 11], "even number"),
    ("istftnet.resblock_kernel_sizes", [3, 7, 10], "odd"),
    ("istftnet.resblock_dilation_sizes", [[1]], "as many"),
    ("istftnet.gen_istft_hop_size", 20, "more than gen_istft_hop_size"),
    ("vocab", {"ab": 1}, "single characters"),
    ("vocab", {"a": -1}, "single characters"),
    ("vocab", {"a": 178}, "below n_token"),
])
def test_a_damaged_config_is_refused_in_one_line(path, value, says):
    with pytest.raises(ModelFileError) as error:
        KokoroConfig.from_dict(edited(path, value), "folder/config.json")
    message = str(error.value)
    assert message.startswith("folder/config.json: ") and says in message and "\n" not in message


def test_tiny_config_can_be_written_and_read():
    raw = edited("hidden_dim", 16) | {"decoder_dim": 20, "asr_res_dim": 4}
    raw["plbert"] = raw["plbert"] | {"embedding_size": 8}
    config = KokoroConfig.from_dict(raw)
    assert (config.decoder, config.asr_residual, config.bert.embedding) == (20, 4, 8)
    assert math.isclose(config.samples_per_frame, 600)
