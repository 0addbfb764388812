"""Candidates after each beam: the most likely tokens, after every sampling option that applies to beams.

As in transformers, penalties, bias and masks act on log-probabilities, which are not renormalised.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from outrider.config import SamplingParams
from outrider.verify import shaping
from outrider.verify.arrays import Array, host
from outrider.verify.constraint import Constraint
from outrider.verify.distribution import Context
from outrider.verify.logits_processors import apply_masks_, apply_penalties_, changes_logits
from outrider.verify.logprobs import likeliest
from outrider_drafters.beams.search import Candidates


def beam_candidates(
    logits: Array,
    contexts: Sequence[Context],
    params: SamplingParams,
    count: int,
    stop_ids: Sequence[int] = (),
    constraint: Constraint | None = None,
) -> list[Candidates]:
    """The ``count`` best continuations of each row, fewer where fewer are possible.

    Each row is computed by itself, in one shape, so that its numbers do not depend on other rows.

    Args:
        logits: any float type [rows, vocab], without padding.
        contexts: one per row, its output up to the row included.
        stop_ids: the model's end-of-text ids, which ``min_tokens`` excludes along with ``stop_token_ids``.

    Raises:
        NumericalError: a row is not finite, or the options leave no token.
        GrammarError: the constraint has no mask for an output.
    """
    rows = host(logits)
    count = min(count, rows.shape[1])
    tokens, logprobs, found = likeliest(rows, count)
    out: list[Candidates] = []
    for i, context in enumerate(contexts):
        mask = None if constraint is None else constraint.mask(context.output)
        if mask is None and not changes_logits(params, len(context.output)):
            n = found[i]
            out.append(list(zip(tokens[i, :n].tolist(), logprobs[i, :n].tolist(), strict=True)))
            continue
        row = rows[i] - rows[i, tokens[i, 0]] + logprobs[i, 0]
        with np.errstate(over="ignore", invalid="ignore"):
            apply_penalties_(row, params, context.prompt, context.output)
            apply_masks_(row, params, context.output, stop_ids, mask)
        shaping.check_largest(float(row.max()), params)
        out.append(_best(row, count))
    return out


def _best(row: NDArray[np.float32], count: int) -> Candidates:
    """The largest finite entries; ties: the lowest id first."""
    least = np.partition(row, len(row) - count)[len(row) - count]
    kept = np.flatnonzero(row >= least)
    order = kept[np.argsort(-row[kept], kind="stable")][:count]
    return [(int(token), float(row[token])) for token in order if row[token] > -np.inf]
