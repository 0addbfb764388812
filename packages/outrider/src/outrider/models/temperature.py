"""Factors of queries by position, which keep attention sharp in long texts (Llama 4, Ministral 3)."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

__all__ = ["QueryTemperature"]


@dataclass(frozen=True, kw_only=True)
class QueryTemperature:
    """The query at position p is multiplied by 1 + scale * ln(1 + floor((p + ahead) / length)), after its rotation."""

    scale: float
    length: int
    ahead: int = 0
    unrotated: bool = False  # only in layers that rotate nothing

    def factors(self, positions: int) -> NDArray[np.float32]:
        """The factor of each position: float32 [positions].

        Decimal, because logarithms of C libraries differ in the last digit.
        """
        with localcontext(prec=40):
            logarithms = [float(Decimal(1 + i).ln()) for i in range(-(-(positions + self.ahead) // self.length))]
        factors = (1 + self.scale * np.array(logarithms, np.float64)).astype(np.float32)
        return np.repeat(factors, self.length)[self.ahead : self.ahead + positions].copy()
