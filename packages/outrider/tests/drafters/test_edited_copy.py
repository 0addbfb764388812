"""Suffix drafts of a text that the output copies with changes: found again behind them, and made again."""

from __future__ import annotations

import pytest

from outrider.drafters.text.edited_copy import ESTABLISHED, LOST, WINDOW
from outrider.drafters.text.suffix import SuffixDrafter
from outrider.verify.draft import Draft
from outrider.verify.tree import children
from tests.drafters.views import grow, request

TEXT = list(range(100, 160))
NAME, NEW = 50, [60, 61]  # a name in the prompt, and the name that replaces it
RENAMED = [*TEXT[:20], NAME, *TEXT[20:30], NAME, *TEXT[30:40], NAME, *TEXT[40:]]


def drafted(prompt: list[int], output: list[int], budget: int = 6) -> Draft:
    drafter, view = SuffixDrafter(10_000), request([*prompt, *output])
    view.prompt = tuple(prompt)
    drafter.start(view)
    (draft,) = drafter.propose([view], [budget])
    return draft


def roots(draft: Draft) -> set[int]:
    return {draft.tokens[node] for node in children(draft.parents)[0]}


def likeliest(draft: Draft) -> list[int]:
    """The first branch."""
    path, below, node = list[int](), children(draft.parents), -1
    while below[node + 1]:
        node = below[node + 1][0]
        path.append(draft.tokens[node])
    return path


def test_guesses_where_a_changed_copy_goes_on() -> None:
    """A token was replaced, or inserted: the text goes on behind the place of the change, or there."""
    draft = drafted(TEXT, [*TEXT[:20], 7])
    assert {TEXT[20], TEXT[21]} <= roots(draft)
    assert likeliest(draft)[0] == TEXT[21]


@pytest.mark.parametrize("changed", [[7], [7, 8, 9], [*range(7, 7 + LOST)]])
@pytest.mark.parametrize("omitted", [0, 1, 3, 30])
def test_found_again_at_the_nearest_place(changed: list[int], omitted: int) -> None:
    """Other places that agree as well come later in the prompt, as many as a search reads."""
    decoys = [token for i in range(20) for token in (*TEXT[20 + omitted : 23 + omitted], 200 + i)]
    output = [*TEXT[:20], *changed, *TEXT[20 + omitted : 23 + omitted]]
    draft = drafted([*TEXT, *decoys], output)
    assert likeliest(draft) == TEXT[23 + omitted : 29 + omitted]
    assert draft.scores is not None
    assert draft.scores[0] > 0.9


def test_a_single_token_is_no_place_far_away() -> None:
    far = [*TEXT[:20], *range(300, 300 + WINDOW), 7, 8, *TEXT[20:]]
    assert drafted(far, [*TEXT[:20], 9, 7]).tokens[0] == 8  # a match of one, as ever
    draft = drafted(far, [*TEXT[:20], 9, 7])
    assert draft.scores is not None
    assert draft.scores[0] < 0.5


def test_a_change_is_made_again() -> None:
    output = [*TEXT[:20], *NEW, *TEXT[20:28]]
    assert likeliest(drafted(RENAMED, output)) == [*TEXT[28:30], *NEW, *TEXT[30:32]]
    under_way = drafted(RENAMED, [*output, *TEXT[28:30], NEW[0]])
    assert likeliest(under_way) == [NEW[1], *TEXT[30:35]]


def test_an_insertion_is_made_again_once_at_each_place() -> None:
    output = [*TEXT[:20], *NEW, NAME, *TEXT[20:28]]
    assert likeliest(drafted(RENAMED, output, 8)) == [*TEXT[28:30], *NEW, NAME, *TEXT[30:33]]
    under_way = drafted(RENAMED, [*output, *TEXT[28:30], NEW[0]])
    assert likeliest(under_way) == [NEW[1], NAME, *TEXT[30:34]]


def test_a_change_that_was_not_made_again_is_given_up() -> None:
    output = [*TEXT[:20], *NEW, *TEXT[20:30], NAME, *TEXT[30:38]]
    assert likeliest(drafted(RENAMED, output)) == [*TEXT[38:40], NAME, *TEXT[40:43]]


def test_a_short_quotation_is_no_copy() -> None:
    assert not drafted(TEXT, [*TEXT[: ESTABLISHED - 1], 7])
    assert drafted(TEXT, [*TEXT[:ESTABLISHED], 7])


def test_falls_silent_after_a_long_change_and_comes_back() -> None:
    lost = [*TEXT[:20], *range(200, 201 + LOST)]
    assert not drafted(TEXT, lost)
    assert likeliest(drafted(TEXT, [*lost, *TEXT[40:43]])) == TEXT[43:49]
    elsewhere = [*TEXT[30:50], *range(200, 201 + LOST), *TEXT[:ESTABLISHED]]
    assert likeliest(drafted(TEXT, [*elsewhere, 7]))[0] == TEXT[ESTABLISHED + 1]


def test_nothing_is_copied_beyond_the_prompt() -> None:
    assert not drafted(TEXT, [*TEXT, 7])
    assert roots(drafted(TEXT, [*TEXT[:-1], 7])) == {TEXT[-1]}


@pytest.mark.parametrize(
    "output",
    [
        [*TEXT[:20], *NEW, *TEXT[20:30], NEW[0]],
        [*TEXT[:25], 7, *TEXT[26:28]],
        [*TEXT[3:40], 7, 8, *TEXT[:18], 9],
    ],
)
def test_a_request_that_starts_again_drafts_the_same(output: list[int]) -> None:
    drafter, view = SuffixDrafter(10_000), request(RENAMED)
    drafter.start(view)
    assert len(output) > 3
    for end in range(0, len(output), 3):
        grow(drafter, view, output[end : end + 3])
        assert drafter.propose([view], [6]) == [drafted(RENAMED, output[: end + 3])]
