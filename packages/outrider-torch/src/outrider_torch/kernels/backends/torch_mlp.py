"""MLPs and mixtures of experts on torch. A row's result depends on that row alone, bit for bit, on a CPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from outrider_torch.kernels.backends.base import ExpertWeights, MLPWeights

Activation = Callable[[Tensor], Tensor]


def dense(weights: MLPWeights, x: Tensor, activate: Activation) -> Tensor:
    """The MLP of x: [T, d] -> [T, d]."""
    inner = weights.gate_up(x)
    if not weights.gated:
        return weights.down(activate(inner))
    gate, up = inner.chunk(2, dim=-1)
    return weights.down(activate(gate) * up)


def mixture(weights: ExpertWeights, x: Tensor, activate: Activation) -> Tensor:
    """The mixture of x: [T, d] -> [T, d]: the weighted sum of each row's best experts, in the experts' order.

    An expert computes only its own rows. Its linear layers give a row the same bits in any batch, and
    a row's experts are added in one order, so the row does not depend on other rows' experts.
    """
    scores = weights.router(x).float().softmax(dim=-1)
    best, chosen = (t[:, : weights.used] for t in scores.sort(dim=-1, descending=True, stable=True))
    if weights.normalised:
        best = best / best.sum(dim=-1, keepdim=True)
    out = torch.zeros_like(x)
    for index in chosen.unique().tolist():
        rows, places = (chosen == index).nonzero(as_tuple=True)
        out[rows] += dense(weights.experts[index], x[rows], activate) * best[rows, places, None].to(x.dtype)
    return out
