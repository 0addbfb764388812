"""Gated DeltaNet (Yang et al. 2024), Mamba-2 (Dao & Gu 2024) and short gated convolutions in torch operations.

On a CPU a row's bits depend on the rows of its own path alone, in any company: all numbers of a state go through the
same sums and products in the same order, and torch's sums and products do not depend on the shape of their tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.cache.states import RecurrentStates
from outrider.models.config import RecurrentLayers
from outrider_torch.kernels.norm import RMSNorm
from outrider_torch.kernels.recurrent.plan import StatePlan
from outrider_torch.kernels.recurrent.states import Changes, LayerStates, advance
from outrider_torch.kernels.serial import elementwise

__all__ = ["RecurrentWeights", "recurrent", "unit_norm"]


@dataclass(frozen=True, eq=False)
class RecurrentWeights:
    """A recurrent layer's weights between its projections, in float32."""

    of: RecurrentLayers
    taps: Tensor  # [convolution, channels]
    taps_bias: Tensor | None = None  # [channels]
    decay: Tensor | None = None  # [value_heads]; None, as below: a short convolution, which has no state
    dt_bias: Tensor | None = None  # [value_heads]
    norm: RMSNorm | None = None  # of a head's values; of Mamba-2, of the values of a key head
    norm_weight: Tensor | None = None  # [values], behind the norm; None: the norm has it
    skip: Tensor | None = None  # [value_heads], of Mamba-2
    query_norm: RMSNorm | None = None  # of Gated DeltaNet
    key_norm: RMSNorm | None = None

    def by_value_head(self, x: Tensor) -> Tensor:
        """[n, key_heads, ...] -> [n, value_heads, ...]: of the key head that each value head reads."""
        count = self.of.value_heads // self.of.key_heads
        if count == 1:
            return x
        if self.of.tiled:
            return x.repeat(1, count, *([1] * (x.dim() - 2)))
        return x.repeat_interleave(count, dim=1)


def unit_norm(size: int, factor: float, device: torch.device) -> RMSNorm:
    """``factor * x / sqrt(sum(x²) + 1e-6)`` of the last ``size`` numbers."""
    return RMSNorm(torch.full((size,), factor * size**-0.5, device=device), 1e-6 / size)


def recurrent(
    weights: RecurrentWeights, plan: StatePlan, states: RecurrentStates, layer: int, projected: Tensor
) -> Tensor:
    """The input of the layer's output projection, float32 [T, values], which takes in the new rows.

    Args:
        layer: the place among recurrent layers.
        projected: float [T, n], the outputs of all input projections side by side, as ``RecurrentLayers`` has them.
    """
    held = LayerStates(plan, states.state[layer], states.inputs[layer], states.updates[layer])
    parts = projected.float().split(list(weights.of.projections.values()), dim=1)
    if weights.of.kind == "delta":
        return _delta(weights, held, *parts)
    if weights.of.kind == "mamba2":
        return _mamba2(weights, held, *parts)
    factor, gate, value = parts[0].chunk(3, dim=1)
    out: Tensor = gate * _convolve(weights, held, factor * value)
    return out


def _convolve(w: RecurrentWeights, held: LayerStates, x: Tensor) -> Tensor:
    """The causal convolution of x: [T, channels], of each channel by itself. Stores the inputs of the last rows."""
    plan, inputs = held.plan, held.inputs
    if plan.fresh is not None:
        inputs[plan.fresh, : w.of.convolution - 1] = 0
    inputs = inputs.view(-1, w.of.channels)
    read = torch.cat([inputs.index_select(0, plan.history), x])
    out = w.taps[0] * read.index_select(0, plan.windows[:, 0])
    for i in range(1, w.of.convolution):
        out += w.taps[i] * read.index_select(0, plan.windows[:, i])
    if plan.last_inputs is not None:
        places, sources = plan.last_inputs
        inputs[places] = read[sources]
    if plan.entries is not None:
        rows, places, _ = plan.entries
        inputs[places] = x[rows]
    return out if w.taps_bias is None else out + w.taps_bias


def _mixed(w: RecurrentWeights, held: LayerStates, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys [T, key_heads, key_dim], and values [T, value_heads, value_dim]."""
    of, mixed = w.of, elementwise(F.silu, _convolve(w, held, x))
    keys = of.key_heads * of.key_dim
    q, k, v = mixed.split([keys, keys, of.values], dim=1)
    heads = (t.reshape(len(x), -1, of.key_dim) for t in (q, k))
    return *heads, v.reshape(len(x), -1, of.value_dim)


def _delta(w: RecurrentWeights, held: LayerStates, x: Tensor, z: Tensor, b: Tensor, a: Tensor) -> Tensor:
    assert w.decay is not None
    assert w.dt_bias is not None
    assert w.query_norm is not None
    assert w.key_norm is not None
    assert w.norm is not None
    q, k, v = _mixed(w, held, x)
    k, beta = w.key_norm(k), elementwise(torch.sigmoid, b)
    decay = elementwise(torch.exp, w.decay * elementwise(F.softplus, a + w.dt_bias))
    changes = Changes(w.by_value_head, k, decay, v, beta)
    out = advance(changes, held, w.by_value_head(w.query_norm(q)))
    return w.norm(out).flatten(1) * elementwise(F.silu, z)


def _mamba2(w: RecurrentWeights, held: LayerStates, x: Tensor, z: Tensor, a: Tensor) -> Tensor:
    assert w.decay is not None
    assert w.dt_bias is not None
    assert w.skip is not None
    assert w.norm is not None
    assert w.norm_weight is not None
    q, k, v = _mixed(w, held, x)
    step = elementwise(F.softplus, a + w.dt_bias)
    changes = Changes(w.by_value_head, k, elementwise(torch.exp, w.decay * step), step[..., None] * v)
    out = advance(changes, held, w.by_value_head(q)) + w.skip[:, None] * v
    gated = out.flatten(1) * elementwise(F.silu, z)
    return w.norm(gated.view(len(x), w.of.key_heads, -1)).flatten(1) * w.norm_weight
