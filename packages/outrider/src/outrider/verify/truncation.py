"""Top-k, top-p and min-p as one number per row: the smallest log-weight that is kept.

Truncation by value keeps all tokens tied with the last kept token, so the result does not depend on how a sort orders
equal values.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from outrider.config import SamplingParams

# Values sorted at first instead of the whole row: most nuclei are far smaller, and selection is cheaper than sorting.
_FEW = 1024


def truncate_(row: NDArray[np.float32], params: SamplingParams) -> None:
    """Set the tokens that top-k, then top-p, then min-p exclude to -inf, in place.

    Args:
        row: float32 [vocab], log-weights after temperature, the largest 0.
    """
    if 0 < params.top_k < len(row):
        rank = len(row) - params.top_k
        _keep_from_(row, np.partition(row, rank)[rank])
    if params.top_p < 1.0:
        _keep_from_(row, _top_p_threshold(row, params.top_p))
    if params.min_p > 0.0:
        # Top-k and top-p keep the largest weight, log 1, to which min_p is relative.
        _keep_from_(row, np.float32(log_of(params.min_p)))


@lru_cache
def log_of(share: float) -> float:
    """The correctly rounded natural logarithm of a share above 0; C libraries differ in the last place."""
    with localcontext(prec=40):
        return float(Decimal(share).ln())


def _keep_from_(row: NDArray[np.float32], threshold: np.float32) -> None:
    np.putmask(row, row < threshold, -np.inf)


def _top_p_threshold(row: NDArray[np.float32], top_p: float) -> np.float32:
    """The smallest value in the smallest set of largest values that holds at least ``top_p`` of the row's mass.

    Nucleus sampling (Holtzman et al. 2020, section 3.1). Weights are float32, their sums float64. NumPy sums the row in
    its own order, and the nucleus from the largest weight down. The library sums the row in 256 partial sums, token
    ``i`` in sum ``i % 256``, or after top-k from the largest down. The two also differ in the last bits of exp, so
    they may disagree about a set whose mass is within 1e-6 of ``top_p``. A process uses one of them for all rows.

    Args:
        row: float32 [vocab], largest 0; -inf for tokens that top-k excluded.
    """
    mass = top_p * np.exp(row).sum(dtype=np.float64)
    for width in (min(_FEW, len(row)), len(row)):
        largest = np.sort(np.partition(row, len(row) - width)[len(row) - width :])[::-1]  # [width], descending
        last = np.exp(largest).cumsum(dtype=np.float64).searchsorted(mass)
        if last < width:
            return np.float32(largest[last])
    return np.float32(-np.inf)  # by rounding, the whole row's sum is below a top_p near 1: keep all tokens
