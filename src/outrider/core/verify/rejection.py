"""Rejection: accept a draft token with probability min(1, p/q), else draw from what q left of p."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from outrider.core.distribution import TargetRows, probs
from outrider.core.draft import Draft, Verdict
from outrider.core.noise import Noise, Purpose
from outrider.errors import ConfigError


class Rejection:
    """Speculative sampling for chains (Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2).

    The output has the target's distribution if each token was drawn from its row of ``q``, or chosen in any way
    that does not look at this step's ACCEPT and RECOVER noise where there is no ``q``.
    """

    name = "rejection"
    exact = True
    coupled = False
    takes_trees = False
    distinct = True

    def __call__(self, draft: Draft, p: TargetRows, noise: Noise, position: int) -> Verdict:
        """Raises ConfigError for a draft with branches."""
        if not draft.is_chain:
            raise ConfigError("verifier='rejection' takes chains, but this draft branches: use verifier='matching'")
        for node, token in enumerate(draft.tokens):
            p_row = p.probs(node)
            q_row = _q_row(draft, node, p_row.shape[0]).to(p_row.device)
            u = noise.uniform(position, Purpose.ACCEPT, node)
            # u < p/q without the division: q may be so small that p/q overflows, and p = 0 is never accepted.
            if not u * float(q_row[token]) < float(p_row[token]):
                recovered = noise.draw(_residual(p_row, q_row), position, Purpose.RECOVER, node)
                return Verdict(tuple(range(node)), recovered)
        n = len(draft)
        bonus = noise.draw(p.log_weights(n), position, Purpose.RECOVER, n)
        return Verdict(tuple(range(n)), bonus)


def _q_row(draft: Draft, node: int, vocab: int) -> Tensor:
    """The distribution to hold against a draft token: float64 [vocab].

    One-hot if the draft has no ``q``, and also if its ``q`` cannot be true: not normalisable, or zero at the very
    token it is said to have produced. The one-hot rule keeps the output exact for a token chosen in whatever
    way, so a broken ``q`` row costs acceptance, not correctness.
    """
    token = draft.tokens[node]
    if draft.q is not None:
        q = probs(draft.q[node])
        if token < q.shape[0] and q[token] > 0:  # NaN compares false
            return pad(q, (0, vocab - q.shape[0]))  # heads may be padded differently; p is zero there
    q = torch.zeros(vocab, dtype=torch.float64)
    q[token] = 1.0
    return q


def _residual(p: Tensor, q: Tensor) -> Tensor:
    """Log-weights of norm(max(0, p - q)), which the recovered token is drawn from: float64 [vocab] -> float32.

    A refusal means p < q at the refused token, so there is mass elsewhere where p > q, except by rounding. Both
    rows sum to 1 within vocab * 2**-53; if no p exceeds its q, then refusals, which have probability
    sum(max(0, q - p)), happen less than once in 2**52 / vocab draws. Drawing from p then moves the
    distribution by no more than that.
    """
    left = (p - q).clamp_min(0.0)
    if not left.any():
        left = p
    return (left / left.max()).log().float()
