"""Top-k, top-p and min-p as one number per row: the smallest log-weight that is kept.

Truncation by value, not by rank, keeps all tokens tied with the last one kept, so the result does not depend on
how a sort happens to order equal values.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from outrider.config import SamplingParams

# How many of the largest values to look at first: a full sort of 49,152 values costs ten times a short ladder.
_LADDER = (256, 4096)


def truncate_(row: Tensor, params: SamplingParams) -> Tensor:
    """Set all tokens that top-k, then top-p, then min-p exclude to -inf, in place.

    Args:
        row: float32 [vocab], scaled log-weights whose largest is 0.
    """
    if 0 < params.top_k < row.shape[0]:
        _keep_from_(row, float(torch.topk(row, params.top_k, sorted=False).values.min()))
    if params.top_p < 1.0:
        _keep_from_(row, _top_p_threshold(row, params.top_p))
    if params.min_p > 0.0:
        _keep_from_(row, math.log(params.min_p))  # the largest is log 1, and neither top-k nor top-p removes it
    return row


def _keep_from_(row: Tensor, threshold: float) -> None:
    row.masked_fill_(row < threshold, -math.inf)


def _top_p_threshold(row: Tensor, top_p: float) -> float:
    """Smallest value in the smallest set of largest values that holds at least ``top_p`` of the row's mass.

    Holtzman et al. 2020 (nucleus sampling). Weights are float32, their sums float64.

    Args:
        row: float32 [vocab], largest 0; -inf where top-k has already excluded a token.
    """
    # NumPy sums on one thread, so that the last bit does not depend on how many threads torch uses.
    mass = top_p * float(row.exp().cpu().numpy().sum(dtype=np.float64))
    vocab = row.shape[0]
    for width in (*(w for w in _LADDER if w < vocab), vocab):
        largest = torch.topk(row, width).values  # [width], descending
        cumulative = largest.exp().double().cumsum(0)
        last = int(torch.searchsorted(cumulative, mass))
        if last < width:
            return float(largest[last])
    return -math.inf  # rounding left the whole row just short of a top_p near 1: keep everything
