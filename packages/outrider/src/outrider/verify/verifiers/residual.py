"""What verifiers that compare ``p`` with ``q`` share: the q of a token, and what a refusal leaves of p."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from outrider.errors import ConfigError
from outrider.verify.arrays import Floats
from outrider.verify.distribution import probs
from outrider.verify.draft import Draft

Probs = NDArray[np.float64]  # [vocab]


def q_row(draft: Draft, node: int, vocab: int, taken: Sequence[int] = ()) -> Probs:
    """The distribution to hold against a draft token: float64 [vocab].

    One-hot if the draft has no ``q_logits``, and also if its row cannot be true: not normalisable, or zero at the very
    token it is said to have produced. The one-hot rule keeps the output exact for a token chosen in whatever
    way, so a broken row costs acceptance, not correctness.

    Args:
        taken: tokens that could not be drawn any more. One drawn all the same, a duplicate, gets the one-hot row.
    """
    token = draft.tokens[node]
    if draft.q_logits is not None:
        row = draft.q_logits[node]
        gone = [i for i in taken if i < row.shape[0]]
        if gone:  # masked before normalising: subtracting their mass from 1 would cancel where it is nearly all
            row = row.copy()
            row[gone] = -np.inf
        q = probs(row)
        if token < q.shape[0] and q[token] > 0:  # NaN compares false
            return _fitted(q, vocab)
    q = np.zeros(vocab)
    q[token] = 1.0
    return q


def _fitted(q: Probs, vocab: int) -> Probs:
    """``q`` over as many tokens as ``p``: heads may be padded differently, and p is zero there."""
    return q if len(q) == vocab else np.pad(q, (0, max(0, vocab - len(q))))[:vocab]


def residual(p: Probs, q: Probs) -> Probs:
    """norm(max(0, p - q)), which is left of ``p`` once a token drawn from ``q`` was refused: float64 [vocab] each.

    A refusal means p < q at the refused token, so there is mass elsewhere where p > q, except by rounding. Both
    rows sum to 1 within vocab * 2**-53; if no p exceeds its q, then refusals, which have probability
    sum(max(0, q - p)), happen less than once in 2**52 / vocab draws. Going on with p then moves the distribution
    by no more than that. Dividing by a small sum magnifies the rounding of p - q as much as it is unlikely.
    """
    left = np.maximum(p - q, 0.0)
    total = left.sum()
    return left / total if total > 0 else p


def log_weights_of(p: Probs) -> Floats:
    """Log-weights to draw from, largest 0: float64 [vocab], not all zero -> float32 [vocab]."""
    with np.errstate(divide="ignore"):  # log 0 is what is meant
        weights: Floats = np.log(p / p.max()).astype(np.float32)
    return weights


def require_chain(draft: Draft, verifier: str) -> None:
    """Raises ConfigError for a draft with branches."""
    if not draft.is_chain:
        raise ConfigError(
            f"verifier={verifier!r} takes chains, but this draft branches: use verifier='matching', or 'sequoia'"
        )
