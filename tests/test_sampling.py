"""Every value of every sampling option is defined, and nothing outside the filtered set is ever drawn."""

import pytest
import torch

from tts_cli.qwen3tts.sampling import SamplingOptions, filter_logits, penalize_repeats, sample


def draw(logits, options, draws=400, seed=0):
    uniforms = torch.rand(draws, generator=torch.Generator().manual_seed(seed))
    return {int(sample(logits, options, u)) for u in uniforms}


@pytest.fixture
def logits():
    return torch.randn(200, generator=torch.Generator().manual_seed(1)) * 4


@pytest.mark.parametrize("temperature", [0, 1e-300, 1e-7])
def test_temperature_zero_is_argmax(logits, temperature):
    assert draw(logits, SamplingOptions(temperature)) == {int(logits.argmax())}


def test_tiny_temperature_does_not_overflow(logits):
    assert draw(logits * 1e30, SamplingOptions(temperature=1e-6)) == {int(logits.argmax())}


@pytest.mark.parametrize("k", [1, 5, 200, 10**6])
def test_top_k_keeps_the_k_best(logits, k):
    best = set(logits.topk(min(k, 200)).indices.tolist())
    kept = filter_logits(logits, SamplingOptions(1.0, k, 1.0)).isfinite()
    assert set(kept.nonzero()[:, 0].tolist()) == best
    assert draw(logits, SamplingOptions(1.0, k, 1.0)) <= best


def test_ties_at_the_kth_place_survive():
    scores = filter_logits(torch.tensor([3.0, 1.0, 1.0, 0.0]), SamplingOptions(1.0, 2, 1.0))
    assert scores.isfinite().tolist() == [True, True, True, False]


def test_top_k_zero_and_top_p_one_keep_all(logits):
    assert filter_logits(logits, SamplingOptions(1.0, 0, 1.0)).isfinite().all()


@pytest.mark.parametrize("p, kept", [(0.0, 1), (0.5, 1), (0.6, 2), (0.9, 3), (1.0, 4)])
def test_top_p_drops_the_tail(p, kept):
    scores = filter_logits(torch.tensor([0.5, 0.3, 0.15, 0.05]).log(), SamplingOptions(1.0, 0, p))
    assert scores.isfinite().sum() == kept


def test_draws_follow_the_distribution():
    probabilities = torch.tensor([0.1, 0.2, 0.7])
    uniforms = (torch.arange(1000) + 0.5) / 1000
    counts = torch.bincount(torch.stack([sample(probabilities.log(), SamplingOptions(1.0, 0, 1.0), u)
                                         for u in uniforms]), minlength=3)
    assert counts.tolist() == pytest.approx([100, 200, 700], abs=1)


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-24])
def test_the_ends_of_the_unit_interval_draw_allowed_tokens(uniform):
    """A dropped token at either end of the vocabulary has no width and is never met."""
    logits = torch.full((3072,), -torch.inf)
    logits[7] = logits[9] = 0.3
    assert int(sample(logits, SamplingOptions(1.0, 0, 1.0), torch.tensor(uniform))) in (7, 9)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("options", [SamplingOptions(), SamplingOptions(0.0), SamplingOptions(0.5, 3, 0.5)])
def test_logits_that_are_not_finite_are_marked(value, options):
    logits = torch.zeros(100)
    logits[5] = value
    assert int(sample(logits, options, torch.tensor(0.5))) == -1


def test_penalty_counts_presence_and_respects_sign():
    seen = torch.tensor([True, True, False])
    assert penalize_repeats(torch.tensor([2.0, -2.0, 2.0]), seen, 2.0).tolist() == [1.0, -4.0, 2.0]
