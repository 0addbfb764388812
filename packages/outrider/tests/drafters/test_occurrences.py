"""Places are those that a search of the texts finds, by the native library and without it."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.drafters.datastore import MAX_MATCH
from outrider.drafters.text import occurrences as module
from outrider.drafters.text.occurrences import GAP, MOST, TYPE, copied, occurrences
from outrider.drafters.text.responses import MOST_TOKENS, TOKEN_BYTES, Responses
from outrider.native.library import library

texts = st.lists(st.integers(GAP, 2), max_size=200)
tails = st.lists(st.integers(0, 2), max_size=20)


@pytest.fixture(params=["native", "NumPy"], autouse=True)
def _searched_by(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "native" and library() is None:
        pytest.skip("no native library")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "NumPy":
            patch.setattr(module, "library", lambda: None)
        yield


def tokens(values: list[int]) -> array[int]:
    return array(TYPE, values)


def agreement(text: list[int], end: int, tail: list[int]) -> int:
    match = 0
    while match < min(end, len(tail), MAX_MATCH) and text[end - 1 - match] == tail[-1 - match]:
        match += 1
    return match


def by_search(text: list[int], tail: list[int]) -> list[tuple[int, int]]:
    """Every place that at least one token of the tail precedes, in the order of the search."""
    ends = [end for end in range(len(text) - 1, 0, -1) if text[end] >= 0]
    found = [(end, match) for end in ends if (match := agreement(text, end, tail))]
    return sorted(found, key=lambda place: -(2 if place[1] >= 4 else place[1] >= 2))


@given(texts, tails, st.integers(0, MOST))
def test_equals_a_search(text: list[int], tail: list[int], limit: int) -> None:
    assert occurrences(tokens(text), tokens(tail), limit) == by_search(text, tail)[:limit]


def test_longer_agreement_and_later_places_come_first() -> None:
    text = tokens([1, 2, 3, 4, 9, 7, 4, 9, 3, 4, 9, 1])
    assert occurrences(text, tokens([1, 2, 3, 4]), 10) == [(4, 4), (10, 2), (7, 1)]
    assert occurrences(text, tokens([1, 2, 3, 4]), 2) == [(4, 4), (10, 2)]
    assert occurrences(text, tokens([5]), 10) == []


def test_places_are_found_far_away_and_no_more_than_the_most() -> None:
    text = tokens([7, 8, *[0] * 100_000, 7])
    assert occurrences(text, text[-1:], 9) == [(1, 1)]
    assert len(occurrences(text, tokens([0]), 10_000)) == MOST


@given(st.lists(st.integers(0, 1), max_size=120), st.integers(0, 60), st.integers(0, 60))
def test_the_first_copy_of_the_prompt(text: list[int], first: int, prompt: int) -> None:
    prompt, expected = min(prompt, len(text)), None
    for i in range(first, len(text)):
        ends = [e for e in range(prompt - 1, 0, -1) if agreement(text, e, text[: i + 1]) == MAX_MATCH]
        if ends:
            expected = i, ends[0]
            break
    assert copied(tokens(text), first, len(text), prompt) == expected


def test_a_copy_out_of_a_long_prompt() -> None:
    prompt = [*range(300), *range(1000, 1200)]
    text = tokens([*prompt, 5, *range(100, 130)])
    assert copied(text, len(prompt), len(text), len(prompt)) == (len(prompt) + MAX_MATCH, 100 + MAX_MATCH)
    assert copied(text, len(prompt), len(prompt) + MAX_MATCH, len(prompt)) is None


def test_bytes_of_two_tokens_are_no_token() -> None:
    """In memory, sixteen times token 1 are between the bytes of twenty times token 256."""
    text = tokens([*[256] * 20, *[1] * MAX_MATCH])
    assert copied(text, 20, len(text), 20) is None
    assert copied(tokens([1] * 40), 20, 40, 20) == (20, 19)


def test_the_least_recently_used_response_goes_first() -> None:
    responses = Responses()
    responses.add("1", [1, 2, 3, 4])
    responses.add("2", [5, 6, 7, 8])
    responses.used([end for end, _ in responses.find(tokens([1]), 1)])
    responses.add("3", [9, 9, 9, 9])
    responses.evict()
    assert responses.find(tokens([5]), 1) == []
    assert len(responses.find(tokens([1]), 1)) == len(responses.find(tokens([9]), 1)) == 1
    assert (len(responses), responses.tokens) == (2, 8)


def test_a_place_belongs_to_the_response_around_it() -> None:
    responses = Responses()
    for name in range(4):
        responses.add(str(name), [10 * name + i for i in range(1, 5)])
    for name in (2, 0, 3, 1):
        responses.used([end for end, _ in responses.find(tokens([10 * name + 3]), 1)])
    order = []
    while len(responses):
        responses.evict()
        order.append([name for name in range(4) if responses.find(tokens([10 * name + 3]), 1)])
    assert order == [[0, 1, 3], [1, 3], [1], []]
    assert responses.size == 0


def test_no_place_is_across_two_responses() -> None:
    responses = Responses()
    responses.add("1", [1, 2, 3])
    responses.add("2", [4, 5, 6])
    assert responses.find(tokens([3]), 9) == []
    assert responses.find(tokens([2, 3, 4]), 9) == [(5, 1)]


def test_a_request_that_ends_twice_is_held_once() -> None:
    responses = Responses()
    responses.add("1", [1, 2])
    responses.add("1", [1, 2, 3, 4])
    assert (len(responses), responses.tokens) == (1, 4)
    assert [end for end, _ in responses.find(tokens([3]), 9)] == [3]
    responses.add("1", [5])
    assert (len(responses), responses.tokens, responses.size) == (0, 0, 0)


def test_a_domain_holds_no_more_tokens_than_a_draft_may_look_at() -> None:
    responses = Responses()
    for name in "abcde":
        responses.add(name, [ord(name)] * (MOST_TOKENS // 4))
    assert (len(responses), responses.tokens) == (4, MOST_TOKENS)
    assert responses.find(tokens([ord("a")]), 1) == []
    responses.add("long", [1] * (MOST_TOKENS + 1))
    assert len(responses) == 4
    assert responses.size >= MOST_TOKENS * TOKEN_BYTES
