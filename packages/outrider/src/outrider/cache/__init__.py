"""Key-value caches: contiguous slots or paged blocks, behind one protocol."""

from __future__ import annotations

from typing import Any

from outrider.cache.contiguous import ContiguousCache
from outrider.cache.pool import DType, RowShape
from outrider.cache.protocol import CacheSpec, KVCache

__all__ = ["CacheSpec", "ContiguousCache", "KVCache", "make_cache"]


def make_cache(
    spec: CacheSpec, *, layers: int, kv_heads: int, head_dim: int, dtype: DType, device: Any = "cpu"
) -> KVCache:
    """A cache as ``spec`` describes it, with a model's dimensions. Raises CapacityError if memory is short.

    ``dtype``: a name for NumPy arrays, which the native library reads; a dtype of torch for tensors.
    """
    shape = RowShape(layers=layers, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype, device=device)
    if spec.kind == "contiguous":
        return ContiguousCache(spec, shape)
    from outrider.cache.paged import PagedCache

    return PagedCache(spec, shape)
