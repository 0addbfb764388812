"""Storage of cache rows: NumPy for the native library, torch for models that torch computes."""

from __future__ import annotations

from outrider.cache.pool import DType, Pool
from outrider.extensions import extension

__all__ = ["pool_kind"]


def pool_kind(dtype: DType) -> type[Pool]:
    """The kind of pool that holds numbers of this type: its name is NumPy's, anything else a backend's."""
    if isinstance(dtype, str):
        return Pool
    made: type[Pool] = extension("backends", "torch").TorchPool
    return made
