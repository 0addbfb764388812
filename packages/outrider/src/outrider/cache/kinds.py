"""Storage of cache rows: NumPy for the native library, torch for models that torch computes."""

from __future__ import annotations

from outrider.cache.pool import DType, Pool

__all__ = ["pool_kind"]


def pool_kind(dtype: DType) -> type[Pool]:
    """The kind of pool that holds numbers of this type. torch is imported for its own types alone."""
    if isinstance(dtype, str):
        return Pool
    from outrider_torch.cache_pool import TorchPool

    return TorchPool
