"""MLPs and mixtures of them in torch operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.models.clamped import ClampedSwiGLU
from outrider.models.experts import Experts
from outrider_torch.kernels.linear import TorchLinear
from outrider_torch.kernels.serial import elementwise

__all__ = ["Activation", "ExpertWeights", "MLPWeights", "activation", "dense", "mixture", "route"]

Activation = Callable[[Tensor, Tensor | None], Tensor]
"""Of gate and up, or of the one projection of an MLP that is not gated: [T, intermediate] each."""


@dataclass(frozen=True, eq=False)
class MLPWeights:
    """Two linear layers with an activation between them."""

    gate_up: TorchLinear  # d -> 2 * intermediate; only d -> intermediate if not gated
    down: TorchLinear
    gated: bool = True


@dataclass(frozen=True, eq=False)
class ExpertWeights:
    """A mixture of MLPs, and the router that chooses some of them for each token."""

    of: Experts
    router: TorchLinear  # d -> experts
    experts: tuple[MLPWeights, ...]
    score_bias: Tensor | None = None  # float32 [experts]
    shared: MLPWeights | None = None  # of all tokens
    shared_gate: TorchLinear | None = None  # d -> 1


def _silu(x: Tensor) -> Tensor:
    """SiLU of x: [T, intermediate]. In bfloat16 vector and scalar code round alike, for all 65,536 inputs."""
    return F.silu(x) if x.dtype != torch.float32 else elementwise(F.silu, x)


def _gelu_tanh(x: Tensor) -> Tensor:
    """GELU by tanh, in float32: [T, intermediate]."""
    return elementwise(lambda part: F.gelu(part, approximate="tanh"), x.float()).to(x.dtype)


def _relu_squared(x: Tensor) -> Tensor:
    """The square of max(x, 0): [T, intermediate]. Both steps are exact or round alike in any code."""
    return F.relu(x).square()


def activation(name: str, clamp: ClampedSwiGLU | None) -> Activation:
    """What the layers' MLPs have between their linear layers; ``clamp``: in place of the activation ``name``."""
    if clamp is not None:
        return partial(_clamped_swiglu, clamp)
    return partial(_times_up, {"silu": _silu, "gelu_tanh": _gelu_tanh, "relu_squared": _relu_squared}[name])


def _times_up(function: Callable[[Tensor], Tensor], gate: Tensor, up: Tensor | None) -> Tensor:
    return function(gate) if up is None else function(gate) * up


def _clamped_swiglu(clamp: ClampedSwiGLU, gate: Tensor, up: Tensor | None) -> Tensor:
    """In float32: [T, intermediate]."""
    assert up is not None
    g, u = gate.float().clamp(max=clamp.limit), up.float().clamp(-clamp.limit, clamp.limit)
    return (g * elementwise(torch.sigmoid, clamp.alpha * g) * (u + 1)).to(gate.dtype)


def dense(weights: MLPWeights, x: Tensor, activate: Activation) -> Tensor:
    """The MLP of x: [T, d] -> [T, d]."""
    inner = weights.gate_up(x)
    if not weights.gated:
        return weights.down(activate(inner, None))
    gate, up = inner.chunk(2, dim=-1)
    return weights.down(activate(gate, up))


def mixture(weights: ExpertWeights, x: Tensor, activate: Activation) -> Tensor:
    """The mixture of x: [T, d] -> [T, d]: the weighted sum of each row's best experts, in the experts' order.

    An expert computes only its own rows. Its linear layers give a row the same bits in any batch, and
    a row's experts are added in one order, so the row does not depend on other rows' experts.
    """
    best, chosen = route(weights.of, weights.router(x).float(), weights.score_bias)
    out = torch.zeros_like(x)
    for index in chosen.unique().tolist():
        rows, places = (chosen == index).nonzero(as_tuple=True)
        scale = best[rows, places, None].to(x.dtype)
        if weights.of.scales_inputs:
            out[rows] += dense(weights.experts[index], x[rows] * scale, activate)
        else:
            out[rows] += dense(weights.experts[index], x[rows], activate) * scale
    if weights.shared is None:
        return out
    shared = dense(weights.shared, x, activate)
    if weights.shared_gate is not None:
        shared = shared * elementwise(torch.sigmoid, weights.shared_gate(x).float()).to(x.dtype)
    return out + shared


def route(of: Experts, numbers: Tensor, score_bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weights and indices [T, used] of each row's experts, from the router's numbers [T, experts] in float32.

    ``score_bias``: float32 [experts], added to scores for the choice alone.
    """
    if of.router == "softmax_of_used":
        found, chosen = _best(numbers, of.used)
        best = found.softmax(dim=-1)
    else:
        softmax = of.router == "softmax"
        scores = numbers.softmax(dim=-1) if softmax else elementwise(torch.sigmoid, numbers)
        by_numbers = not softmax and score_bias is None and not of.groups
        liked = numbers if by_numbers else scores if score_bias is None else scores + score_bias
        if of.groups:
            liked = _within_groups(liked, of)
        chosen = _best(liked, of.used)[1]
        best = scores.gather(1, chosen)
        if of.normalised:
            best = best / (best.sum(dim=-1, keepdim=True) + of.sum_added).clamp(min=of.least_sum)
    return best * of.scale, chosen


def _best(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest ``count`` of each row and their indices, the first of equals."""
    values, indices = scores.sort(dim=-1, descending=True, stable=True)
    return values[:, :count], indices[:, :count]


def _within_groups(scores: Tensor, of: Experts) -> Tensor:
    """``scores`` with -inf outside of each row's best groups."""
    grouped = scores.view(len(scores), of.groups, -1)
    wide = min(of.best_of_group, grouped.shape[2])
    totals = grouped.sort(dim=-1, descending=True, stable=True)[0][..., :wide].sum(dim=-1)
    closed = torch.ones_like(totals, dtype=torch.bool).scatter_(1, _best(totals, of.groups_used)[1], False)
    return grouped.masked_fill(closed[..., None], -torch.inf).flatten(1)
