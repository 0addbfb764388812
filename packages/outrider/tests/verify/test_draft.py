"""Parts of drafts: what is left keeps its own rows, scores and sources."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.verify.draft import Draft

DRAFT = Draft(
    tokens=(7, 8, 9, 6),
    parents=(-1, -1, 0, 1),
    q_logits=np.arange(20, dtype=np.float32).reshape(4, 5),
    source="a+b",
    scores=(0.9, 0.8, 0.7, 0.6),
    sources=("a", "b", "a", "b"),
)


def test_a_part_of_a_draft_keeps_what_belongs_to_its_nodes() -> None:
    part = DRAFT.only([1, 3])
    assert (part.tokens, part.parents) == ((8, 6), (-1, 0))
    assert (part.scores, part.sources, part.source) == ((0.8, 0.6), ("b", "b"), "a+b")
    assert part.q_logits is not None
    assert np.array_equal(part.q_logits, np.arange(20, dtype=np.float32).reshape(4, 5)[[1, 3]])


def test_nodes_of_a_part_keep_their_parents() -> None:
    tree = Draft(tokens=(5, 6, 7, 8, 9), parents=(-1, -1, 1, 1, -1))
    assert tree.only([1, 2, 3]).parents == (-1, 0, 0)
    assert tree.only([1, 3, 4]).parents == (-1, 0, -1)


def test_all_of_a_draft_is_the_draft() -> None:
    assert DRAFT.only([0, 1, 2, 3]) is DRAFT


@pytest.mark.parametrize(
    "wrong",
    [
        {"parents": (-1, -1, 0)},
        {"parents": (-1, 1, 0, 1)},
        {"q_logits": np.zeros((3, 5), np.float32)},
        {"scores": (1.0,)},
        {"sources": ("a",)},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_parts_that_do_not_fit_together_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="draft"):
        Draft(**{"tokens": (7, 8, 9, 6), "parents": (-1, -1, 0, 1)} | wrong)  # type: ignore[arg-type]
