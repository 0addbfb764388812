"""The mathematics of speculative decoding, equation by equation.

``alpha`` is the probability that a draft token is accepted, ``k`` the draft tokens per step, ``c`` the time of one
draft run over that of one target run, ``p`` the target's and ``q`` the draft's distribution. Arguments are numbers or
arrays, which broadcast; numbers give a number.

Unless stated, equations are those of Leviathan et al. (2023), "Fast inference from transformers via speculative
decoding", which assume that acceptances are independent and equally likely, and (wall time) that scoring k + 1 tokens
takes as long as scoring one. ``outrider_lab.cost`` replaces the second assumption by a measured curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from outrider.errors import ConfigError
from outrider.verify import shapes

Values: TypeAlias = NDArray[np.float64]
"""An array, or a NumPy number where all arguments were numbers."""


def expected_tokens(alpha: ArrayLike, k: ArrayLike) -> Values:
    """Tokens per target run: E = (1 - α^(K+1)) / (1 - α), and K + 1 at α = 1. Equation (1); Stratos, section 1.1.1.

    Raises ConfigError for α outside [0, 1] or K below 0, as all functions here do.
    """
    a, n = _share("alpha", alpha), _at_least(0, "k", k) + 1
    with np.errstate(divide="ignore", invalid="ignore"):
        tokens: Values = -np.expm1(n * np.log(a)) / (1 - a)  # 1 - α^n without cancellation where α is near 1
    return _plain(np.where(a == 1, n, tokens))


def expected_accepted(alpha: ArrayLike, k: ArrayLike) -> Values:
    """Draft tokens kept per target run: equation (1) without the recovered or bonus token, Σ_{i=1..K} α^i."""
    return _plain(np.asarray(expected_tokens(alpha, k) - 1))


def improvement(alpha: ArrayLike, k: ArrayLike, c: ArrayLike = 0.0) -> Values:
    """Wall time of plain decoding over that of speculation: (1 - α^(K+1)) / ((1 - α)(Kc + 1)). Theorem 3.8."""
    return _plain(np.asarray(expected_tokens(alpha, k) / (np.asarray(k) * _at_least(0, "c", c) + 1)))


def operations(alpha: ArrayLike, k: ArrayLike, c_hat: ArrayLike = 0.0) -> Values:
    """Arithmetic of speculation over that of plain decoding: (1 - α)(Kĉ + K + 1) / (1 - α^(K+1)). Theorem 3.11.

    ``c_hat``: operations per token of the draft over those of the target.
    """
    k = np.asarray(k)
    return _plain(np.divide(k * _at_least(0, "c_hat", c_hat) + k + 1, expected_tokens(alpha, k)))


def best_k(alpha: ArrayLike, c: ArrayLike, limit: int = 64) -> NDArray[np.int64]:
    """The K of 0 to ``limit`` with the largest improvement, the smallest if several have it. Section 3.5, figure 3.

    It is 0, plain decoding, unless α > c (corollary 3.9). At c = 0 every further token helps, and it is ``limit``.
    """
    a, c = np.broadcast_arrays(_share("alpha", alpha), _at_least(0, "c", c))
    candidates = improvement(a[..., None], np.arange(limit + 1), c[..., None])
    best: NDArray[np.int64] = candidates.argmax(axis=-1)
    return best


def pays(alpha: ArrayLike, c: ArrayLike) -> NDArray[np.bool_]:
    """Whether some K is faster than plain decoding: α > c. Corollary 3.9."""
    return _share("alpha", alpha) > _at_least(0, "c", c)


def guaranteed_gain(alpha: ArrayLike, c: ArrayLike) -> Values:
    """A lower bound on the best K's improvement if α > c: that of K = 1, (1 + α)/(1 + c). Corollary 3.9."""
    return _plain(np.divide(1 + _share("alpha", alpha), 1 + _at_least(0, "c", c)))


def oracle_tokens(alpha: ArrayLike) -> Values:
    """Tokens per target run of an oracle that drafts exactly the accepted tokens: 1 / (1 - α). Section 3.5."""
    with np.errstate(divide="ignore"):
        return np.divide(1.0, 1 - _share("alpha", alpha))


def oracle_improvement(alpha: ArrayLike, c: ArrayLike) -> Values:
    """Improvement of ``oracle_tokens``' oracle, with α/(1 - α) draft runs a step: 1 / (1 - α + cα). Section 3.5."""
    a = _share("alpha", alpha)
    with np.errstate(divide="ignore"):
        return np.divide(1.0, 1 - a + _at_least(0, "c", c) * a)


def chain_tokens(rates: Sequence[float]) -> float:
    """Tokens per target run if depth i is accepted with probability ``rates[i]``, given that all depths before it were.

    1 + Σ_d Π_{i≤d} rates[i], which is equation (1) if all rates are α.
    """
    return 1 + float(np.cumprod(_share("rates", rates)).sum())


def d_lk(p: ArrayLike, q: ArrayLike) -> Values:
    """D_LK(p, q) = Σ |p - M|, M = (p + q)/2: half the L1 distance, total variation. Definition 3.2.

    ``p``, ``q``: probabilities [..., vocab]. Returns [...], as the functions below do.
    """
    p, q = np.asarray(p, np.float64), np.asarray(q, np.float64)
    return _plain(np.abs(p - (p + q) / 2).sum(axis=-1))


def acceptance(p: ArrayLike, q: ArrayLike) -> Values:
    """β = Σ min(p, q) = 1 - D_LK: the chance that rejection keeps a token drawn from q. Theorem 3.5.

    Its mean over positions is α (corollary 3.6).
    """
    return _plain(np.minimum(p, q).sum(axis=-1))


def lenient_acceptance(p: ArrayLike, q: ArrayLike, lenience: float) -> Values:
    """α(l) = Σ min(p/l, q), for a lenience l in (0, 1]. Appendix A.5.

    No token is then emitted more than 1/l times as often as the target emits it.
    """
    if not 0 < lenience <= 1:
        raise ConfigError(f"lenience={lenience!r} is not valid: use a number above 0 and at most 1")
    return _plain(np.minimum(np.asarray(p) / lenience, q).sum(axis=-1))


def coupled_acceptance(p: ArrayLike, q: ArrayLike) -> Values:
    """Probability that p and q draw the same token from the same Gumbel noise: matching's acceptance.

    Σ_i 1 / Σ_j max(p_j/p_i, q_j/q_i), over tokens that both can draw (Daliri et al. 2024, "Coupling without
    communication and drafter-invariant speculative decoding"). At most ``acceptance``, and at least about half of it.
    """
    p, q = np.broadcast_arrays(np.asarray(p, np.float64), np.asarray(q, np.float64))
    rows = [_coupled(a, b) for a, b in zip(p.reshape(-1, p.shape[-1]), q.reshape(-1, q.shape[-1]), strict=True)]
    return _plain(np.reshape(rows, p.shape[:-1]))


def tree_tokens(parents: Sequence[int], rates: Sequence[float]) -> float:
    """Tokens per target run of a draft tree: 1 + Σ over nodes of the product of ``rates`` along its path.

    ``rates[r]`` is the probability that the child drawn r-th below an accepted node is the one accepted: the positional
    acceptance assumption of Sequoia (Chen et al. 2024). ``parents`` as in ``verify.draft.Draft``.
    """
    return 1 + shapes.expected_accepted(parents, list(_share("rates", rates)))


def best_tree(rates: Sequence[float], nodes: int, depth: int | None = None) -> tuple[int, ...]:
    """Parents of the tree of at most ``nodes`` nodes with the most ``tree_tokens``, no deeper than ``depth``.

    A node's value is the product of rates along its path. It never exceeds its parent's, nor, with rates sorted in
    descending order, an elder sibling's. The most valuable nodes therefore form a tree.
    """
    ranked = tuple(sorted((float(rate) for rate in _share("rates", rates) if rate > 0), reverse=True))
    levels = nodes if depth is None else depth
    return shapes.likeliest((ranked,) * levels, nodes, levels)


def _coupled(p: Values, q: Values) -> float:
    """One row of ``coupled_acceptance``: [vocab] each. Sorted by p/q, the inner sum is two cumulative sums."""
    both = np.flatnonzero((p > 0) & (q > 0))
    only_p, only_q = p[q == 0].sum(), q[p == 0].sum()  # ratios of infinity and of 0
    order = both[np.argsort(p[both] / q[both], kind="stable")]
    p, q = p[order], q[order]
    from_here = p[::-1].cumsum()[::-1] + only_p  # Σ of p_j where p_j/q_j >= p_i/q_i
    before = np.concatenate([[0.0], q.cumsum()[:-1]]) + only_q  # Σ of q_j for the others
    return float((1 / (from_here / p + before / q)).sum())


def _plain(values: NDArray[Any]) -> Values:
    """A NumPy number instead of an array without dimensions."""
    result: Values = values[()]
    return result


def _share(name: str, values: ArrayLike) -> Values:
    found = np.asarray(values, np.float64)
    if not ((found >= 0) & (found <= 1)).all():
        raise ConfigError(f"{name}={values!r} is not valid: it is a probability, between 0 and 1")
    return found


def _at_least(least: float, name: str, values: ArrayLike) -> Values:
    found = np.asarray(values, np.float64)
    if not (found >= least).all():
        raise ConfigError(f"{name}={values!r} is not valid: use {least:g} or more")
    return found
