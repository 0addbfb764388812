"""The most likely tokens of rows of logits or log-weights, with their log-probabilities."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from outrider.drafters.trees.builders import Choices
from outrider.verify import native
from outrider.verify.noise import largest

Rows = NDArray[np.float32]
Ranked = tuple[list[int], list[float]]
"""Columns of a row and their log-probabilities, the most likely first."""


def most_likely(row: Rows, count: int) -> Choices:
    """The ``count`` largest log-weights of ``row`` [vocab], without impossible tokens. Ties go to the lower id.

    A row with NaN has no choices.
    """
    best = row.max()  # NaN if any element is NaN
    if not np.isfinite(best):
        return Choices(())
    tokens = largest(row, count).tolist()
    total = float(best) + float(np.log(np.exp(row - best).sum(dtype=np.float64)))
    return Choices(tokens, [float(row[token]) - total for token in tokens])


def most_likely_of_each(
    logits: Rows,
    count: int,
    temperature: float = 1.0,
    *,
    noise: Rows | None = None,
    ids: NDArray[np.int64] | None = None,
) -> list[Ranked] | None:
    """The ``count`` most likely columns of each row [n, columns] at a temperature; ties go to the first column.

    Args:
        noise: [columns], added to every row's log-weights.
        ids: [columns], returned instead of the column numbers.

    Returns:
        None if the largest logit of a row is not finite.
    """
    if noise is not None:
        top = logits.max(1, keepdims=True)
        if not np.isfinite(top).all():
            return None
        logits, temperature = (logits - top) / np.float32(temperature) + noise, 1.0
    sampler = native.sampler()
    if sampler is None:
        found = _in_numpy(logits, count, temperature)
        return found if found is None or ids is None else [(ids[columns].tolist(), s) for columns, s in found]
    columns, scores, counts = sampler.most_likely(logits, min(count, logits.shape[1]), temperature)
    if min(counts) < 0:
        return None
    ranked = zip(columns.tolist(), scores.tolist(), counts, strict=True)
    if ids is None:
        return [(c[:n], s[:n]) for c, s, n in ranked]
    return [(ids[c[:n]].tolist(), s[:n]) for c, s, n in ranked]


def _in_numpy(x: Rows, count: int, temperature: float) -> list[Ranked] | None:
    top = x.max(1, keepdims=True)
    if not np.isfinite(top).all():
        return None
    ranked: list[Ranked] = []
    for row in (x - top) / np.float32(temperature):
        best = largest(row, count)
        ranked.append((best.tolist(), (row[best] - np.log(np.exp(row).sum(dtype=np.float64))).tolist()))
    return ranked
