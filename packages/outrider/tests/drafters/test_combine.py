"""Combined trees hold every path of their parts, share beginnings, and keep to the budget."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from outrider.drafters.merge import combine
from outrider.verify.draft import EMPTY, Draft
from outrider.verify.tree import children, path_to


def paths(draft: Draft) -> list[tuple[int, ...]]:
    return [tuple(draft.tokens[i] for i in path_to(draft.parents, node)) for node in range(len(draft))]


def test_example() -> None:
    one, other = Draft.chain([7, 9, 4], source="a"), Draft((7, 8, 9, 5), (-1, -1, 0, 2), None, "b")
    merged = combine([one, other], 10)
    assert set(paths(merged)) == set(paths(one)) | set(paths(other))
    assert len(merged) == 5
    by_path = dict(zip(paths(merged), range(len(merged)), strict=True))
    origin = {path: merged.source_of(node) for path, node in by_path.items()}
    assert origin == {(7,): "a", (7, 9): "a", (7, 9, 4): "a", (8,): "b", (7, 9, 5): "b"}
    assert merged.source == "a+b"


def test_one_part_with_something_to_say_is_left_as_it_is() -> None:
    draft = Draft.chain([1, 2], q_logits=np.zeros((2, 4), np.float32), source="a")
    assert combine([EMPTY, draft, EMPTY], 5) is draft
    assert combine([EMPTY, EMPTY], 5) is EMPTY
    assert combine([], 5) is EMPTY
    assert combine([draft, Draft.chain([3])], 5).q_logits is None


trees = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 99)), max_size=8).map(
    lambda nodes: Draft(tuple(t for t, _ in nodes), tuple(p % (i + 1) - 1 for i, (_, p) in enumerate(nodes)))
)


@given(st.lists(trees, min_size=2, max_size=4), st.integers(1, 30))
def test_any_trees(drafts: list[Draft], budget: int) -> None:
    merged = combine(drafts, budget)
    wanted = {path for draft in drafts for path in paths(draft)}
    if sum(bool(draft) for draft in drafts) < 2:
        assert set(paths(merged)) == wanted
        return
    assert len(merged) == min(budget, len(wanted))
    assert set(paths(merged)) <= wanted
    for below in children(merged.parents):
        assert len({merged.tokens[i] for i in below}) == len(below)


@given(st.integers(2, 20))
def test_the_budget_is_shared(budget: int) -> None:
    merged = combine([Draft.chain([0] * 20, source="a"), Draft.chain([1] * 20, source="b")], budget)
    assert abs(merged.sources.count("a") - merged.sources.count("b")) <= 1
