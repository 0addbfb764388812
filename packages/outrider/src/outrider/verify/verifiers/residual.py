"""Shared by verifiers that compare ``p`` with ``q``: the ``q`` of a draft token, and the residual of ``p``."""

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
    """The distribution ``q`` of the draft token at ``node``: float64 [vocab].

    One-hot if the draft has no ``q_logits``, or if its row is invalid: not normalisable, or zero at the drafted
    token. A one-hot ``q`` keeps the output exact however the token was chosen, so an invalid row costs acceptance,
    not correctness.

    Args:
        taken: tokens excluded from the draw. A draft token among them (a duplicate) gets the one-hot row.
    """
    token = draft.tokens[node]
    if draft.q_logits is not None:
        row = draft.q_logits[node]
        gone = [i for i in taken if i < row.shape[0]]
        if gone:  # masked before normalising: 1 minus their mass would cancel if their mass is nearly 1
            row = row.copy()
            row[gone] = -np.inf
        q = probs(row)
        if token < q.shape[0] and q[token] > 0:  # NaN compares false
            return _fitted(q, vocab)
    q = np.zeros(vocab)
    q[token] = 1.0
    return q


def _fitted(q: Probs, vocab: int) -> Probs:
    """``q`` cut or zero-padded to the length of ``p``: LM heads differ in padding, where ``p`` is zero."""
    return q if len(q) == vocab else np.pad(q, (0, max(0, vocab - len(q))))[:vocab]


def residual(p: Probs, q: Probs) -> Probs:
    """norm(max(0, p - q)), the residual of ``p`` after a token drawn from ``q`` was refused: float64 [vocab] each.

    A refusal means p < q at the refused token, so p > q at some other token, except by rounding. Both rows sum to 1
    within vocab * 2**-53. If no p exceeds its q, refusals have probability sum(max(0, q - p)), less than
    vocab / 2**52, and returning p moves the distribution by no more than that. Dividing by a small sum magnifies the
    rounding of p - q by the inverse of the probability of the refusal.
    """
    left = np.maximum(p - q, 0.0)
    total = left.sum()
    return left / total if total > 0 else p


def log_weights_of(p: Probs) -> Floats:
    """Log-weights to draw from, largest 0: float64 [vocab], not all zero -> float32 [vocab]."""
    with np.errstate(divide="ignore"):  # log 0 = -inf is intended
        weights: Floats = np.log(p / p.max()).astype(np.float32)
    return weights


def require_chain(draft: Draft, verifier: str) -> None:
    """Raises ConfigError for a draft with branches."""
    if not draft.is_chain:
        raise ConfigError(
            f"verifier={verifier!r} takes chains, but this draft branches: use verifier='matching', or 'sequoia'"
        )
