"""Tokens that a structured output forces: the schema allows no other (docs/algorithms/grammar.md)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outrider.drafters.api import Drafter, RequestView, SingleRequestDrafter
from outrider.drafters.context import DrafterContext
from outrider.errors import GrammarError
from outrider.verify.constraint import Constraint
from outrider.verify.draft import EMPTY, Draft


def build(context: DrafterContext) -> Drafter:
    """The source ``grammar``."""
    return GrammarDrafter()


class GrammarDrafter(SingleRequestDrafter):
    """Drafts the forced tokens: none without a constraint, or where several tokens are allowed."""

    def draft(self, request: RequestView, budget: int) -> Draft:
        if request.constraint is None:
            return EMPTY
        tokens = forced_tokens(request.constraint, request.tokens[request.prompt_length :], budget)
        return Draft.chain(tokens, source="grammar") if tokens else EMPTY


def forced_tokens(constraint: Constraint, output: Sequence[int], limit: int) -> list[int]:
    """Up to ``limit`` tokens that must follow ``output``: each is the only token that the constraint allows there."""
    text = list(output)
    try:
        while len(text) < len(output) + limit:
            mask = constraint.mask(text)
            if mask is None or np.count_nonzero(mask) != 1:
                break
            text.append(int(mask.argmax()))
    except GrammarError:
        pass  # raised again when the request itself reaches this token
    return text[len(output) :]
