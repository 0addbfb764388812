"""Forms behind a thinking section: the mask after any output, in whatever order outputs are asked about."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from outrider.config import SamplingParams
from outrider.verify.constraint import Constraint
from outrider.verify.distribution import Context, TargetRows
from outrider.verify.draft import Draft
from outrider.verify.grammar.thinking import ThinkingConstraint

OPEN, CLOSE, EOS, SIZE = 7, 8, 9, 10


class Counting:
    """A form of its own: after n tokens only token n may come, and the end after three."""

    def mask(self, output: Sequence[int]) -> NDArray[np.bool_] | None:
        if list(output) != list(range(len(output))):
            return None
        mask: NDArray[np.bool_] = np.arange(SIZE) == (len(output) if len(output) < 3 else EOS)
        return mask


def constraint(*, inside: bool) -> Constraint:
    return ThinkingConstraint(Counting(), (OPEN, CLOSE), [EOS], SIZE, inside=inside)


def allowed(mask: NDArray[np.bool_] | None) -> set[int] | None:
    return None if mask is None else set(np.flatnonzero(mask).tolist())


def expected(output: list[int], *, inside: bool) -> set[int] | None:
    """As the text says it, one token at a time."""
    anything = set(range(SIZE)) - {EOS}
    thinking = inside
    behind: list[int] | None = None if inside else []
    for place, token in enumerate(output):
        if behind is None:
            if token == EOS:
                return None
            behind = [] if token == CLOSE else None
        elif place == 0 and token == OPEN:
            thinking, behind = True, None
        else:
            behind.append(token)
    if behind is None:
        return anything
    form = allowed(Counting().mask(behind))
    return form | {OPEN} if form is not None and not output and not thinking else form


@given(
    st.lists(st.lists(st.sampled_from([0, 1, 2, OPEN, CLOSE, EOS]), max_size=7), min_size=1, max_size=12), st.booleans()
)
def test_the_mask_is_a_function_of_the_output(outputs: list[list[int]], inside: bool) -> None:
    own = constraint(inside=inside)
    assert outputs
    for output in outputs:
        assert allowed(own.mask(output)) == expected(output, inside=inside)


def test_rows_behind_the_sections_end_in_a_tree_have_the_forms_masks() -> None:
    """A draft with two branches: one leaves the section, the other does not."""
    #       5 -> CLOSE -> 0 -> 1
    #         -> 6
    draft = Draft(tokens=(5, CLOSE, 0, 1, 6), parents=(-1, 0, 1, 2, 0))
    logits = np.zeros((6, SIZE), np.float32)
    params = SamplingParams(temperature=1.0)
    p = TargetRows(logits, params, Context([1], [OPEN, 4]), draft, vocab_size=SIZE, constraint=constraint(inside=False))
    thinking = set(range(SIZE)) - {EOS}
    rows = [thinking, thinking, {0}, {1}, {2}, thinking]
    assert [set(np.flatnonzero(p.probs(row)).tolist()) for row in range(6)] == rows


def test_an_end_of_several_tokens_counts_as_a_whole() -> None:
    own = ThinkingConstraint(Counting(), (OPEN, CLOSE), [EOS], SIZE, inside=False, before_close=(5, 6))
    anything = set(range(SIZE)) - {EOS}
    for output in ([OPEN, CLOSE], [OPEN, 6, CLOSE, 5], [OPEN, 5, 6], [OPEN, 6, 5, CLOSE]):
        assert allowed(own.mask(output)) == anything
    for before in ([OPEN], [OPEN, CLOSE, 4]):
        assert allowed(own.mask([*before, 5, 6, CLOSE])) == {0}
        assert allowed(own.mask([*before, 5, 6, CLOSE, 0, 1])) == {2}
