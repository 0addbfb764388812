"""Scores of a level by a head that predicts how probably the target takes the best token of each row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from outrider.drafters.trees.builders import Choices

__all__ = ["trusted"]

_SURE = -1e-6  # log-probabilities are clipped to this, so that other tokens keep a share


def trusted(found: Sequence[Choices], sure: Sequence[float], *, alone: bool) -> list[Choices]:
    """The choices of each row with scores by ``sure``, the log-probability that its best token is taken.

    Other tokens share the rest in proportion to their own scores, each at most as the best. Tokens and ``q_logits``
    stay. ``alone``: rows have one token, which gets a score even if it had none.
    """
    return [_trusted(each, float(best), alone) for each, best in zip(found, sure, strict=True)]


def _trusted(choices: Choices, best: float, alone: bool) -> Choices:
    if not choices.tokens or math.isnan(best) or not (choices.scores or alone):
        return choices
    best = min(best, _SURE)
    if not choices.scores:
        return replace(choices, scores=[best])
    rest = math.log(-math.expm1(best)) - math.log(-math.expm1(min(choices.scores[0], _SURE)))
    return replace(choices, scores=[best, *(min(best, score + rest) for score in choices.scores[1:])])
