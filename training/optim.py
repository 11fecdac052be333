"""Muon for matrices and convolutions, AdamW for the rest."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic iteration, see `orthogonalized`
_LEAST = 8  # rows or columns; matrices thinner than that gain nothing


class Muon(torch.optim.Optimizer):
    """Momentum whose matrices are orthogonalised before they are applied (Jordan et al. 2024).

    Updates are scaled to the size AdamW's have (Liu et al. 2025, arXiv:2502.16982). Convolutions count as matrices of
    output channels by all the rest.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float = 1e-3, momentum: float = 0.95):
        super().__init__(parameters, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                mean.lerp_(p.grad, 1 - group["momentum"])
                update = orthogonalized(p.grad.lerp(mean, group["momentum"]).flatten(1))
                p.add_(update.view_as(p), alpha=-0.2 * group["lr"] * max(update.shape) ** 0.5)


def orthogonalized(m: Tensor) -> Tensor:
    """The nearest matrix with singular values of about 1 (0.7 to 1.2), by Newton-Schulz iterations.

    All of them are polynomials in the square of the shorter side, which is where they are computed: for a matrix six
    times as long as it is wide that is half the work. It needs float32.
    """
    x = m.float() if m.shape[0] <= m.shape[1] else m.mT.float()
    x = x / (x.norm() + 1e-7)
    a, b, c = _COEFFICIENTS
    one = torch.eye(len(x), device=x.device)
    square, factor = x @ x.mT, one
    for _ in range(5):
        step = torch.addmm(torch.add(a * one, square, alpha=b), square, square, alpha=c)
        factor = step @ factor
        square = step @ square @ step
    x = factor @ x
    return (x if m.shape[0] <= m.shape[1] else x.mT).to(m.dtype)


def optimizers(named: Iterable[tuple[str, nn.Parameter]], muon: bool = True,
               betas: tuple[float, float] = (0.9, 0.98), decay: float = 0.0) -> list[torch.optim.Optimizer]:
    """One optimizer for each kind of parameter; tables of which a step sees some rows only go to AdamW."""
    matrices, rest = [], []
    for name, p in named:
        wide = p.dim() > 1 and min(len(p), p[0].numel()) >= _LEAST
        (matrices if muon and wide and "embedding" not in name else rest).append(p)
    found: list[torch.optim.Optimizer] = [torch.optim.AdamW(rest, lr=1e-3, betas=betas, weight_decay=decay)]
    return found + ([Muon(matrices)] if matrices else [])
