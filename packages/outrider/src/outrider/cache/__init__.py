"""Key-value caches: contiguous slots or paged blocks, behind one protocol, with recurrent states where a model has
them."""

from __future__ import annotations

from typing import Any

from outrider.cache.checkpoints import Checkpoints
from outrider.cache.contiguous import ContiguousCache
from outrider.cache.hybrid import HybridCache
from outrider.cache.pool import DType, RowShape
from outrider.cache.protocol import CacheSpec, KVCache
from outrider.cache.states import StateShape, states_kind

__all__ = ["CacheSpec", "ContiguousCache", "HybridCache", "KVCache", "StateShape", "extend_unread", "make_cache"]


def make_cache(
    spec: CacheSpec,
    *,
    layers: int,
    kv_heads: int,
    head_dim: int,
    value_dim: int = 0,
    dtype: DType,
    device: Any = "cpu",
    states: StateShape | None = None,
    heads: tuple[tuple[int, int], ...] = (),
) -> KVCache:
    """A cache as ``spec`` describes it, with a model's dimensions. Raises CapacityError if memory is short.

    Args:
        layers: layers with keys and values of their own.
        value_dim: numbers at the beginning of a key that are its value; 0: values are apart.
        heads: key heads and dimensions of each layer, where they differ.
        dtype: a name for NumPy arrays, which the native library reads; a dtype of torch for tensors.
        states: the recurrent layers; None: the model has none.
    """
    shape = RowShape(
        layers=layers,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=value_dim,
        dtype=dtype,
        device=device,
        heads=heads,
    )
    if states is None:
        return ContiguousCache(spec, shape) if spec.kind == "contiguous" else _paged(spec, shape)
    make = states_kind(dtype, device)
    held = make(states, spec.slots + spec.branches, spec.pending, spec.branches)
    checkpoints = Checkpoints(make(states, spec.checkpoints if spec.prefix_reuse else 0, spec.pending))
    if spec.kind == "contiguous":
        return HybridCache(ContiguousCache(spec, shape, checkpoints.usable), held, checkpoints, block=1)
    return HybridCache(_paged(spec, shape), held, checkpoints, spec.block_size)


def _paged(spec: CacheSpec, shape: RowShape) -> KVCache:
    from outrider.cache.paged import PagedCache

    return PagedCache(spec, shape)


def extend_unread(cache: KVCache, slot: int, context: int, rows: int) -> None:
    """Make a slot seem to hold ``context`` rows, with room for ``rows`` more, for timings: its rows are arbitrary."""
    cache.truncate_to(slot, 0)
    cache.extend(slot, context + rows)
    if cache.states is not None:
        cache.states.assume(slot, context)
