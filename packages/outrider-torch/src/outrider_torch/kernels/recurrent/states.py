"""States of recurrent layers row after row: ``S = decay * S + key deltaᵀ``, and what queries read of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider_torch.kernels.recurrent.plan import Settling, StatePlan

__all__ = ["Changes", "LayerStates", "advance"]


@dataclass(frozen=True)
class LayerStates:
    """A layer's part of a cache's states, and the plan of a pass through it."""

    plan: StatePlan
    state: Tensor  # as in ``RecurrentStates``, like the others
    inputs: Tensor
    updates: Tensor


@dataclass(frozen=True)
class Changes:
    """What new rows do to states."""

    by_value_head: Callable[[Tensor], Tensor]  # [n, key_heads, ...] -> [n, value_heads, ...]
    keys: Tensor  # float32 [T, key_heads, key_dim]
    decays: Tensor  # float32 [T, value_heads]
    values: Tensor  # float32 [T, value_heads, value_dim]
    rates: Tensor | None = None  # float32 [T, value_heads]

    def deltas(self, rows: Tensor | slice, keys: Tensor, state: Tensor) -> Tensor:
        """The values of packed rows; with rates, their difference from what keys read of ``state``, times the rates."""
        if self.rates is None:
            return self.values[rows]
        return (self.values[rows] - _read(keys, state)) * self.rates[rows][..., None]


def advance(changes: Changes, of: LayerStates, queries: Tensor) -> Tensor:
    """What queries [T, value_heads, key_dim] read of the states behind their own rows: [T, value_heads, value_dim].

    Stores the states of kept rows, and entries of the others.
    """
    plan, held = of.plan, of.state
    if plan.fresh is not None:
        held[plan.fresh] = 0
    state = held.index_select(0, plan.places)
    _replay(changes, of, state)
    _settle(held, plan.settling, state)
    keys, decays = changes.by_value_head(changes.keys), changes.decays
    read, deltas = torch.zeros_like(changes.values), torch.zeros_like(changes.values)
    for level in plan.levels:
        rows = level.rows if plan.order is None else plan.order[level.rows]
        if level.parents is not None:
            state = state.index_select(0, level.parents)
        state *= decays[rows][..., None, None]
        key = keys[rows]
        delta = changes.deltas(rows, key, state)
        _add(state, key, delta)
        deltas[rows], read[rows] = delta, _read(queries[rows], state)
        _settle(held, level.settling, state)
    if plan.entries is not None:
        packed, _, places = plan.entries
        own = torch.cat([changes.keys.flatten(1), deltas.flatten(1), decays], dim=1)
        of.updates.view(-1, of.updates.shape[-1])[places] = own[packed]
    return read


def _replay(changes: Changes, of: LayerStates, state: Tensor) -> None:
    """Apply pending rows to ``state`` as they were applied first."""
    plan, heads = of.plan, state.shape[1]
    if not plan.replays:
        return
    entries = of.updates.view(-1, of.updates.shape[-1]).index_select(0, plan.replayed)
    keys, deltas, decays = entries.split([changes.keys[0].numel(), heads * state.shape[3], heads], dim=1)
    keys = changes.by_value_head(keys.reshape(-1, *changes.keys.shape[1:]))
    deltas = deltas.reshape(len(entries), heads, -1)
    for replay in plan.replays:
        part = state if replay.of is None else state[replay.of]
        part *= decays[replay.rows][..., None, None]
        _add(part, keys[replay.rows], deltas[replay.rows])
        if replay.of is not None:
            state[replay.of] = part


def _settle(held: Tensor, settling: Settling | None, state: Tensor) -> None:
    if settling is not None:
        held[settling.places] = state[settling.of]


def _add(state: Tensor, key: Tensor, delta: Tensor) -> None:
    """Add the products of key [n, heads, key_dim] and delta [n, heads, value_dim]."""
    state += key[..., None] * delta[..., None, :]


def _read(key: Tensor, state: Tensor) -> Tensor:
    """``key · state``: [n, heads, key_dim] and [n, heads, key_dim, value_dim] -> [n, heads, value_dim].

    On a CPU halves are added to each other, since a matrix product's order of additions depends on its shape.
    """
    if state.is_cuda:
        product: Tensor = torch.matmul(key[..., None, :], state)[..., 0, :]
        return product
    products = key[..., None] * state
    while (count := products.shape[2]) > 1:
        half = (count + 1) // 2
        products[:, :, : count - half] += products[:, :, half:]
        products = products[:, :, :half]
    return products[:, :, 0]
