"""The most likely tokens of rows of logits or log-weights, with their log-probabilities."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider.core import native
from outrider.drafters.trees.builders import Choices

Rows = NDArray[np.float32]
Ranked = tuple[list[int], list[float]]
"""Columns of a row and their log-probabilities, the most likely first."""


def most_likely(row: Tensor, count: int) -> Choices:
    """The ``count`` largest of log-weights [vocab], the first of equals first, without the impossible ones.

    A row with NaN has no choices.
    """
    first = int(row.numpy().argmax())
    if not row[first].isfinite():
        return Choices(())
    best = row.topk(min(count, row.shape[0])).indices.tolist()
    tokens = [first, *(token for token in best if token != first and row[token] > -torch.inf)][:count]
    total = float(torch.logsumexp(row, dim=0))
    return Choices(tokens, [float(row[token]) - total for token in tokens])


def most_likely_of_each(
    logits: Rows,
    count: int,
    temperature: float = 1.0,
    *,
    noise: Rows | None = None,
    ids: NDArray[np.int64] | None = None,
) -> list[Ranked] | None:
    """The ``count`` most likely columns of each row [n, columns] at a temperature; of equals the first.

    Args:
        noise: [columns], added to every row's log-weights.
        ids: [columns], names to give the columns, instead of their numbers.

    Returns:
        None if the largest logit of a row is not finite.
    """
    if noise is not None:
        largest = logits.max(1, keepdims=True)
        if not np.isfinite(largest).all():
            return None
        logits, temperature = (logits - largest) / np.float32(temperature) + noise, 1.0
    sampler = native.sampler()
    if sampler is None:
        found = _in_torch(torch.from_numpy(logits), count, temperature)
        return found if found is None or ids is None else [(ids[columns].tolist(), s) for columns, s in found]
    columns, scores, counts = sampler.most_likely(logits, min(count, logits.shape[1]), temperature)
    if min(counts) < 0:
        return None
    ranked = zip(columns.tolist(), scores.tolist(), counts, strict=True)
    if ids is None:
        return [(c[:n], s[:n]) for c, s, n in ranked]
    return [(ids[c[:n]].tolist(), s[:n]) for c, s, n in ranked]


def _in_torch(x: Tensor, count: int, temperature: float) -> list[Ranked] | None:
    largest = x.amax(1, keepdim=True)
    if not bool(largest.isfinite().all()):
        return None
    x = (x - largest) / temperature
    best = x.topk(min(count, x.shape[1]))
    scores = (best.values - x.logsumexp(1, keepdim=True)).tolist()
    first = x.numpy().argmax(1).tolist()  # of equals; topk takes any
    return [_in_order(*row) for row in zip(first, best.indices.tolist(), scores, strict=True)]


def _in_order(first: int, columns: list[int], scores: list[float]) -> Ranked:
    """The columns of the largest scores, ``first``, which is as large as any, in front; none that is impossible."""
    order = [first, *(column for column in columns if column != first)][: len(columns)]
    possible = sum(score > -math.inf for score in scores)
    return order[:possible], scores[:possible]
