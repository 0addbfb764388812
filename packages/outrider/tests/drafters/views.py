"""Requests as draft sources see them, without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from outrider.config import SamplingParams, SpeculationParams
from outrider.drafters.api import Drafter, Outcome
from outrider.engine.request import Request
from outrider.verify.distribution import Context, TargetRows
from outrider.verify.draft import EMPTY, Draft, Verdict

NOTHING = TargetRows(np.zeros((1, 8), np.float32), SamplingParams(), Context((), ()), EMPTY)
"""What a target without an opinion says."""


def request(
    tokens: Sequence[int], *, id: str = "r", speculation: dict[str, Any] | None = None, **params: Any
) -> Request:
    """A request whose prompt is ``tokens``."""
    options = {"seed": 0, "max_tokens": 1000} | params
    own: dict[str, Any] = {"draft": "none"} | (speculation or {})
    view = Request(id, tuple(tokens), SamplingParams(**options), SpeculationParams(**own), frozenset())
    view.max_seq_len = 10_000
    return view


def grow(drafter: Drafter, view: Request, tokens: Sequence[int], draft: Draft = EMPTY) -> None:
    """Commit tokens and tell the source, as the engine does."""
    view.tokens += tokens
    drafter.observe([Outcome(view, draft, Verdict((), tokens[-1]), tuple(tokens), NOTHING)])


def propose(drafter: Drafter, view: Request, budget: int) -> Draft:
    (draft,) = drafter.propose([view], [budget])
    assert len(draft) <= budget
    assert draft.is_chain or view.speculation.tree is not None
    return draft
