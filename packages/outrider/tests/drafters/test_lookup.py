"""Prompt lookup: the longest earlier match, the most recent of equals."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outrider.drafters.text.lookup import MAX_MATCH, LookupDrafter, match_confidence, max_copy
from outrider.verify.draft import EMPTY
from tests.drafters.views import grow, propose, request


def drafted(tokens: list[int], budget: int) -> tuple[int, ...]:
    drafter, view = LookupDrafter(), request(tokens)
    drafter.start(view)
    return propose(drafter, view, budget).tokens


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2, 3, 4, 5, 1, 2], (3, 4, 5, 1)),
        ([7, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2], (3, 8, 1, 2)),  # 7 1 2 is longer than the later 1 2
        ([1, 2, 3, 8, 1, 2, 4, 8, 9, 1, 2], (4, 8, 9, 1)),  # of equals, the later one
        ([1, 2, 1, 2], (1, 2, 1, 2)),  # repeats with its period
        ([5, 5, 5], (5, 5, 5, 5)),
        ([1, 2, 3, 1], (2, 3, 1)),  # one token is trusted for three
        ([1, 2, 1, 3, 4, 5, 6, 1], (3, 4, 5)),
        ([1, 2, 3], ()),
        ([1, 2], ()),
        ([1, 1], (1, 1, 1)),
        ([1], ()),
    ],
)
def test_examples(tokens: list[int], expected: tuple[int, ...]) -> None:
    assert drafted(tokens, 4) == expected


def test_the_longer_the_match_the_surer_it_is_and_each_token_that_is_right_makes_it_longer() -> None:
    drafter = LookupDrafter()
    scores = []
    for tokens in ([8, 1, 2, 3, 9, 1], [8, 1, 2, 3, 4, 5, 9, 1, 2]):
        view = request(tokens)
        drafter.start(view)
        scores.append(propose(drafter, view, 4).scores)
    assert scores[0] == (match_confidence(1), match_confidence(2), match_confidence(3))
    assert scores[1] == (match_confidence(2), match_confidence(3), match_confidence(4), match_confidence(5))
    assert (
        match_confidence(1)
        < match_confidence(2)
        < match_confidence(3)
        < match_confidence(4)
        < match_confidence(MAX_MATCH)
        == match_confidence(99)
    )


def by_search(tokens: list[int], budget: int) -> tuple[int, ...]:
    """The same by trying every end of every length."""
    n = len(tokens)
    for length in range(min(MAX_MATCH, n - 1), 0, -1):
        for end in range(n - 1, length - 1, -1):
            if tokens[end - length : end] == tokens[n - length :]:
                text, limit = list(tokens), max_copy(length)
                while len(text) < n + min(budget, limit or budget):  # copy one by one, so that an overlap repeats
                    text.append(text[end + len(text) - n])
                return tuple(text[n:])
    return ()


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 12))
@example([0, 1] * 12, 9)
@example([0] * 30, 5)
def test_equals_a_search(tokens: list[int], budget: int) -> None:
    assert drafted(tokens, budget) == by_search(tokens, budget)


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=8))
def test_follows_the_output(steps: list[list[int]]) -> None:
    """The index grows with the request and never differs from one made afresh."""
    drafter, view = LookupDrafter(), request([0, 1, 0])
    drafter.start(view)
    assert steps
    for step in steps:
        grow(drafter, view, step)
        assert propose(drafter, view, 5).tokens == by_search(view.tokens, 5)


def test_nothing_is_shared_between_requests() -> None:
    drafter, one, other = LookupDrafter(), request([1, 2, 3, 1, 2], id="one"), request([1, 2], id="other")
    drafter.start(one)
    drafter.start(other)
    drafts = drafter.propose([one, other], [3, 3])
    assert drafts[0].tokens == (3, 1, 2)
    assert drafts[0].source == "lookup"
    assert drafts[0].q_logits is None
    assert drafts[1] is EMPTY
    drafter.finish("one")
    drafter.finish("one")
