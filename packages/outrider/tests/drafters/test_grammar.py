"""The ``grammar`` source: what must come, as far as it is certain."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from outrider.drafters.text.grammar import GrammarDrafter, forced_tokens
from outrider.errors import GrammarError
from outrider.verify.draft import EMPTY
from tests.drafters.views import propose, request


class Script:
    """Allows after each output what the script says at that place."""

    def __init__(self, *allowed: Sequence[int], error: bool = False) -> None:
        self._allowed, self._error = allowed, error

    def mask(self, output: Sequence[int]) -> NDArray[np.bool_] | None:
        if len(output) >= len(self._allowed):
            if self._error:
                raise GrammarError("too much")
            return None
        mask = np.zeros(8, dtype=np.bool_)
        mask[list(self._allowed[len(output)])] = True
        return mask


def test_a_chain_up_to_the_first_choice() -> None:
    view = request([1, 2, 3])
    view.constraint = Script([4], [5], [6, 7], [0])
    draft = propose(GrammarDrafter(), view, 5)
    assert (draft.tokens, draft.q_logits, draft.source) == ((4, 5), None, "grammar")
    view.tokens += [4, 5, 6]
    assert propose(GrammarDrafter(), view, 5).tokens == (0,)


def test_no_more_than_the_budget_and_not_beyond_the_end() -> None:
    script = Script([4], [5], [6], [0])
    assert forced_tokens(script, [], 2) == [4, 5]
    assert forced_tokens(script, [], 9) == [4, 5, 6, 0]
    assert forced_tokens(script, [4, 5, 6, 0], 9) == []


def test_silent_where_there_is_a_choice_no_constraint_or_an_error() -> None:
    view = request([1, 2, 3])
    assert propose(GrammarDrafter(), view, 5) is EMPTY
    view.constraint = Script([4, 5])
    assert propose(GrammarDrafter(), view, 5) is EMPTY
    assert forced_tokens(Script([4], error=True), [], 5) == [4]
    assert forced_tokens(Script(error=True), [], 5) == []
