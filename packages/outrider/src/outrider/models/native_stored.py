"""Weights in memory and in files, as the native library reads them."""

from __future__ import annotations

from typing import Any

import numpy as np

from outrider.native.stored import StoredTensor
from outrider.verify.arrays import host

__all__ = ["as_stored"]


def as_stored(weight: Any) -> StoredTensor:
    """A weight of ``Stored`` as a ``StoredTensor``."""
    if isinstance(weight, StoredTensor):
        return weight
    if isinstance(weight, np.ndarray):
        return StoredTensor.of(weight)
    return StoredTensor.of(host(weight))
