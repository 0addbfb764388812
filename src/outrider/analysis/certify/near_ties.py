"""Where two outputs part: a tie that rounding decided, or a bug?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outrider.analysis.agreement import read
from outrider.config import SamplingParams
from outrider.core.distribution import Context, log_weights
from outrider.core.noise import Noise
from outrider.llm import LLM


@dataclass(frozen=True)
class Parting:
    """The first position at which two outputs differ, and how close the target's decision was there.

    ``margin`` is the score of the target's choice over that of the token the other run took, both read afresh: logits
    over temperature, plus the position's noise where the request is sampled. Rounding moves either score by the
    arithmetic noise over temperature at most.
    """

    position: int  # in the output
    token: int
    other: int
    margin: float
    allowed: float

    @property
    def is_rounding(self) -> bool:
        return self.margin <= self.allowed


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Where two outputs part, or None. One that ends early parts there."""
    if list(a) == list(b):
        return None
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def parting(
    llm: LLM, prompt: Sequence[int], params: SamplingParams, plain: Sequence[int], other: Sequence[int], noise: float
) -> Parting:
    """Judge two different outputs of one request; ``noise``: arithmetic noise per logit (``arithmetic.examine``)."""
    at = first_difference(plain, other)
    assert at is not None
    if at >= min(len(plain), len(other)):  # one is a beginning of the other: no score can explain that
        ends = -1
        tokens = [x[at] if at < len(x) else ends for x in (plain, other)]
        return Parting(at, tokens[0], tokens[1], float("inf"), 0.0)
    text = [*prompt, *plain[:at]]
    logits = read(llm.model, text, len(text) - 1)
    context = Context(tuple(prompt), tuple(plain[:at]))
    options = params
    if params.greedy:  # the scores that the largest is taken of
        options = SamplingParams(**{**vars(params), "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0})
    scores = log_weights(logits, [options], [context], vocab_size=llm.engine.vocab_size)[0].numpy().astype(np.float64)
    if not params.greedy:
        assert params.seed is not None
        scores = scores + Noise(params.seed).gumbel(len(text), len(scores)).numpy()
    margin = float(scores.max() - scores[other[at]])
    # Both the winner and the other may move; float32 addition of noise and log-weight is left a unit in its last place.
    allowed = 2 * noise / (params.temperature or 1.0) + (1e-5 if noise else 0.0)
    return Parting(at, plain[at], other[at], margin, allowed)
