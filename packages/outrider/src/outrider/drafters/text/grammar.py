"""Tokens that a structured output leaves no choice about (docs/algorithms/grammar.md)."""

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
    """Drafts the forced tokens; nothing where there is a choice, or no constraint."""

    def draft(self, request: RequestView, budget: int) -> Draft:
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
