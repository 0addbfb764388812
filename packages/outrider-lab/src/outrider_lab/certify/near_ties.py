"""Judges the divergence of two outputs: a near-tie that rounding decided, or a bug."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from outrider.config import SamplingParams
from outrider.llm import LLM
from outrider.verify.arrays import Floats
from outrider.verify.distribution import Context, log_weights
from outrider.verify.noise import Noise
from outrider_lab.agreement import forward_logits

ENDED = -1


@dataclass(frozen=True)
class Divergence:
    """The first position at which two outputs differ, and the margin of the target's decision there.

    ``margin`` is the best score minus the score of the other run's token, both computed again. A score is the logit
    over temperature, plus the position's noise if the request is sampled. The margin is infinite for a token that the
    options exclude.
    """

    position: int  # in the output
    token: int
    other: int
    margin: float
    is_rounding: bool


def first_divergence(a: Sequence[int], b: Sequence[int]) -> int | None:
    """The first index at which two outputs differ, or None; the length of the shorter one if it ends early."""
    if list(a) == list(b):
        return None
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def explain_divergence(
    llm: LLM, prompt: Sequence[int], params: SamplingParams, plain: Sequence[int], other: Sequence[int], noise: float
) -> Divergence:
    """Judge two different outputs of one request.

    Rounding explains the difference if the other token wins after its logit is raised, and the winner's lowered, by
    ``noise``, the arithmetic noise per logit (``batch_invariance.examine``): by its own score, or by passing a limit of
    top-k, top-p or min-p. With ``noise`` 0 rounding explains nothing. It never explains an output that ends early.
    """
    at = first_divergence(plain, other)
    assert at is not None
    if at >= min(len(plain), len(other)):
        tokens = [x[at] if at < len(x) else ENDED for x in (plain, other)]
        return Divergence(at, tokens[0], tokens[1], float("inf"), is_rounding=False)
    text = [*prompt, *plain[:at]]
    context = Context(tuple(prompt), tuple(plain[:at]))
    logits = forward_logits(llm.model, text, len(text) - 1)
    scores = _scores(logits, params, context, llm.engine.vocab_size)
    winner = int(scores.argmax())
    moved = logits.copy()
    moved[0, other[at]] += noise
    moved[0, winner] -= noise
    could_win = other[at] in (winner, int(_scores(moved, params, context, llm.engine.vocab_size).argmax()))
    return Divergence(at, plain[at], other[at], float(scores[winner] - scores[other[at]]), noise > 0 and could_win)


def _scores(logits: Floats, params: SamplingParams, context: Context, vocab_size: int) -> NDArray[np.float64]:
    """Scores whose arg-max is the next token: log-weights, plus the position's noise if the request is sampled."""
    if params.greedy:  # scores to compare, rather than the one-hot distribution
        params = replace(params, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
        ranked: NDArray[np.float64] = log_weights(logits, [params], [context], vocab_size=vocab_size)[0].astype(
            np.float64
        )
        return ranked
    weights = log_weights(logits, [params], [context], vocab_size=vocab_size)[0]
    assert params.seed is not None
    position = len(context.prompt) + len(context.output)
    # In float32 as in the engine, so that both have the same ties.
    scores: NDArray[np.float64] = (weights + Noise(params.seed).gumbel(position, len(weights))).astype(np.float64)
    return scores
