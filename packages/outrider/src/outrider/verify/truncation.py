"""Top-k, top-p and min-p as one number per row: the smallest log-weight that is kept.

Truncation by value, not by rank, keeps all tokens tied with the last one kept, so the result does not depend on
how a sort happens to order equal values.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from outrider.config import SamplingParams

# Values to sort before resorting to the whole row: most nuclei are far smaller, and selecting is cheaper.
_FEW = 1024


def truncate_(row: NDArray[np.float32], params: SamplingParams) -> None:
    """Set the tokens that top-k, then top-p, then min-p exclude to -inf, in place.

    Args:
        row: float32 [vocab], scaled log-weights whose largest is 0.
    """
    if 0 < params.top_k < len(row):
        rank = len(row) - params.top_k
        _keep_from_(row, np.partition(row, rank)[rank])
    if params.top_p < 1.0:
        _keep_from_(row, _top_p_threshold(row, params.top_p))
    if params.min_p > 0.0:
        # The largest is log 1 and always kept so far, so min_p is relative to it whatever went before.
        _keep_from_(row, np.float32(log_of(params.min_p)))


@lru_cache
def log_of(share: float) -> float:
    """The natural logarithm of a share above 0, rounded once: those of C libraries differ in the last place."""
    with localcontext(prec=40):
        return float(Decimal(share).ln())


def _keep_from_(row: NDArray[np.float32], threshold: np.float32) -> None:
    np.putmask(row, row < threshold, -np.inf)


def _top_p_threshold(row: NDArray[np.float32], top_p: float) -> np.float32:
    """Smallest value in the smallest set of largest values that holds at least ``top_p`` of the row's mass.

    Nucleus sampling (Holtzman et al. 2020, section 3.1). Weights are float32, their sums float64: of the row in NumPy's
    order, and of the largest from the largest down. The library adds up the row in 256 sums, token ``i`` in sum
    ``i % 256``, or after top-k from the largest down. Its exp and NumPy's differ in last bits, too, so that the two may
    disagree about a set that holds ``top_p`` of the mass to within 1e-6; a process uses one of them for all rows.

    Args:
        row: float32 [vocab], largest 0; -inf where top-k has already excluded a token.
    """
    mass = top_p * np.exp(row).sum(dtype=np.float64)
    for width in (min(_FEW, len(row)), len(row)):
        largest = np.sort(np.partition(row, len(row) - width)[len(row) - width :])[::-1]  # [width], descending
        last = np.exp(largest).cumsum(dtype=np.float64).searchsorted(mass)
        if last < width:
            return np.float32(largest[last])
    return np.float32(-np.inf)  # rounding left the whole row just short of a top_p near 1: keep everything
