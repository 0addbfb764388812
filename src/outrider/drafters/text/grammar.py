"""Tokens that a structured output leaves no choice about (docs/algorithms/grammar.md)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outrider.core.constraint import Constraint
from outrider.core.draft import EMPTY, Draft
from outrider.drafters.api import Outcome, RequestView
from outrider.errors import GrammarError


class GrammarDrafter:
    """Drafts the tokens that must come; says nothing where there is a choice, or no constraint."""

    def start(self, request: RequestView) -> None:
        """Nothing to keep: the constraint knows."""

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        return [self._propose(r, budget) for r, budget in zip(requests, budgets, strict=True)]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Nothing to learn."""

    def finish(self, request_id: str) -> None:
        """Nothing to release."""

    def _propose(self, request: RequestView, budget: int) -> Draft:
        if request.constraint is None:
            return EMPTY
        tokens = forced_tokens(request.constraint, request.tokens[request.prompt_length :], budget)
        return Draft.chain(tokens, source="grammar") if tokens else EMPTY


def forced_tokens(constraint: Constraint, output: Sequence[int], limit: int) -> list[int]:
    """Up to ``limit`` tokens that must follow ``output``, each the only one its row allows."""
    text = list(output)
    try:
        while len(text) < len(output) + limit:
            mask = constraint.mask(text)
            if mask is None or np.count_nonzero(mask) != 1:
                break
            text.append(int(mask.argmax()))
    except GrammarError:
        pass  # the request ends with it when it gets there
    return text[len(output) :]
