"""MLPs and mixtures of experts on torch. A row's result depends on that row alone, bit for bit, on a CPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from outrider_torch.kernels.backends.base import ExpertWeights, MLPWeights

__all__ = ["dense", "mixture"]

Activation = Callable[[Tensor], Tensor]


def dense(weights: MLPWeights, x: Tensor, activate: Activation) -> Tensor:
    """[T, d] of [T, d]."""
    inner = weights.gate_up(x)
    if not weights.gated:
        return weights.down(activate(inner))
    gate, up = inner.chunk(2, dim=-1)
    return weights.down(activate(gate) * up)


def mixture(weights: ExpertWeights, x: Tensor, activate: Activation) -> Tensor:
    """[T, d] of [T, d]: each row through the experts that its router likes best, added up in the order of the experts.

    An expert sees the rows that chose it and no others. Its linear layers give a row the same bits in any company, and
    a row's experts come in one order, so the row does not depend on what the others chose.
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
