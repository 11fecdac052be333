"""From logits to tokens: pure functions of tensors, without a host sync. Leading dimensions are rows of their own.

Randomness comes in as a uniform number per draw, so that the caller owns the one seeded generator of a request.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# Below this temperature the largest logit always wins, and dividing by it would leave float32.
GREEDY_BELOW = 1e-6


@dataclass(frozen=True)
class SamplingOptions:
    """temperature 0 = argmax; top_k 0 = all; top_p 1 = all (0 keeps the single most likely token)."""
    temperature: float = 0.9
    top_k: int = 50
    top_p: float = 1.0


def penalize_repeats(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Divide positive and multiply negative logits of tokens in the boolean mask `seen`, both [..., V].

    Presence counts, not frequency, over the whole utterance (Keskar et al. 2019, CTRL).
    """
    return torch.where(seen, torch.where(logits < 0, logits * penalty, logits / penalty), logits)


def filter_logits(logits: Tensor, options: SamplingOptions) -> Tensor:
    """Temperature, top-k, top-p: scores [..., V] whose softmax is the distribution to draw from.

    Ties at the k-th place survive; top-p drops the tail whose total probability is at most 1 - p and keeps at least
    one token.
    """
    # The largest logit becomes 0 first, so that no temperature can overflow float32.
    scores = logits
    if options.temperature != 1:
        scores = (logits - logits.amax(-1, keepdim=True)) / options.temperature
    if 0 < options.top_k < scores.shape[-1]:
        kth = torch.topk(scores, options.top_k).values[..., -1:]
        scores = scores.masked_fill(scores < kth, -torch.inf)
    if options.top_p < 1:
        ordered, order = scores.sort(descending=False)
        dropped = ordered.softmax(-1).cumsum(-1) <= 1 - options.top_p
        dropped[..., -1] = False
        scores = scores.masked_fill(dropped.scatter(-1, order, dropped), -torch.inf)
    return scores


def sample(logits: Tensor, options: SamplingOptions, uniform: Tensor) -> Tensor:
    """Tokens int64 [...] from float32 logits [..., V]; `uniform` [...] in [0, 1) picks them by inverse CDF.

    -1 when the logits hold NaN or +inf, so that the caller can report it whenever it next looks.
    """
    if options.temperature < GREEDY_BELOW:
        # NaN counts as the largest. (Indexing with the argmax would wait for it on the host.)
        return torch.where(logits.amax(-1).isfinite(), logits.argmax(-1), -1)
    cdf = filter_logits(logits, options).softmax(-1).cumsum(-1)
    # The first index where the CDF exceeds u, so one where it rises: never a dropped token. u < 1 keeps it below the
    # total. (Counting beats torch.searchsorted, which costs more than all the rest here.)
    total = cdf[..., -1]
    drawn = (cdf <= (uniform * total)[..., None]).sum(-1)
    return torch.where(total.isfinite(), drawn, -1)


def sample_rows(logits: Tensor, options: Sequence[SamplingOptions], uniforms: Tensor) -> Tensor:
    """`sample` for rows [n, V] with options of their own, uniforms [n] -> int64 [n]."""
    if all(one == options[0] for one in options):
        return sample(logits, options[0], uniforms)
    return torch.stack([sample(*row) for row in zip(logits, options, uniforms, strict=True)])
