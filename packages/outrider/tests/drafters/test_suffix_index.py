"""The index finds what a search of the texts finds, and forgets without a trace."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.drafters.datastore import MAX_MATCH
from outrider.drafters.text.responses import Responses
from outrider.drafters.text.suffix_index import KEPT, LENGTHS, SuffixIndex

texts = st.lists(st.integers(0, 2), min_size=1, max_size=30)


def by_search(known: dict[int, list[int]], tail: list[int]) -> dict[tuple[int, int], int]:
    """Every place that at least one token of the tail precedes: (text, end) -> length of the match."""
    found: dict[tuple[int, int], int] = {}
    for number, tokens in known.items():
        for end in range(1, len(tokens)):
            match = 0
            while match < min(end, len(tail), MAX_MATCH) and tokens[end - 1 - match] == tail[-1 - match]:
                match += 1
            if match:
                found[number, end] = match
    return found


def found(index: SuffixIndex, tail: list[int], limit: int = 10_000) -> dict[tuple[int, int], int]:
    occurrences = index.find(tail, limit)
    result = {(o.text, o.end): o.match for o in occurrences}
    assert len(result) == len(occurrences)
    return result


@given(st.lists(texts, min_size=1, max_size=4), st.lists(st.integers(0, 2), min_size=1, max_size=20))
def test_equals_a_search(many: list[list[int]], tail: list[int]) -> None:
    index, known = SuffixIndex(), dict(enumerate(many))
    for number, tokens in known.items():
        index.extend(number, tokens, 0, len(tokens) // 2)
        index.extend(number, tokens, len(tokens) // 2, len(tokens))  # in two pieces, as texts grow
    assert found(index, tail) == by_search(known, tail)


@given(st.lists(texts, min_size=2, max_size=4), texts)
def test_a_forgotten_text_leaves_nothing(many: list[list[int]], tail: list[int]) -> None:
    index, fresh = SuffixIndex(), SuffixIndex()
    for number, tokens in enumerate(many):
        index.extend(number, tokens, 0, len(tokens))
        if number:
            fresh.extend(number, tokens, 0, len(tokens))
    index.forget(0, len(many[0]))
    assert found(index, tail) == found(fresh, tail)
    assert len(index) == len(fresh)
    for number, tokens in enumerate(many[1:], 1):
        index.forget(number, len(tokens))
    assert len(index) == 0


def test_longer_endings_and_later_places_come_first() -> None:
    index, tokens = SuffixIndex(), [1, 2, 3, 4, 9, 7, 4, 9, 3, 4, 9, 1]
    index.extend(0, tokens, 0, len(tokens))
    assert [(o.end, o.match) for o in index.find([1, 2, 3, 4], 10)] == [(4, 4), (10, 2), (7, 1)]
    assert [(o.end, o.match) for o in index.find([1, 2, 3, 4], 2)] == [(4, 4), (10, 2)]
    assert index.find([5], 10) == []


def test_matches_are_measured_as_far_as_they_count() -> None:
    index, tokens = SuffixIndex(), list(range(40))
    index.extend(0, tokens, 0, len(tokens))
    for length in (1, 4, 5, 6, MAX_MATCH, 30):
        assert found(index, tokens[35 - length : 35]) == {(0, 35): min(length, MAX_MATCH)}


def test_frequent_endings_keep_their_latest_places() -> None:
    index, tokens = SuffixIndex(), [0] * 500
    index.extend(0, tokens, 0, len(tokens))
    ends = [o.end for o in index.find([0], 1000)]
    assert ends == sorted(range(500 - len(ends), 500), reverse=True)
    assert KEPT <= len(ends) <= 2 * KEPT
    assert len(index) == len(LENGTHS)
    index.forget(0, 500)
    assert len(index) == 0


def test_the_least_recently_used_response_goes_first() -> None:
    responses = Responses()
    responses.add("1", [1, 2, 3, 4])
    responses.add("2", [5, 6, 7, 8])
    responses.used([o.text for o in responses.find([1], 1)])
    responses.add("3", [9, 9, 9, 9])
    responses.evict()
    assert responses.find([5], 1) == []
    assert len(responses.find([1], 1)) == len(responses.find([9], 1)) == 1
    assert (len(responses), responses.tokens) == (2, 8)


def test_a_request_that_ends_twice_is_held_once() -> None:
    responses = Responses()
    responses.add("1", [1, 2])
    responses.add("1", [1, 2, 3, 4])
    assert (len(responses), responses.tokens) == (1, 4)
    assert [o.end for o in responses.find([3], 9)] == [3]
    responses.add("1", [5])
    assert (len(responses), responses.tokens, responses.size) == (0, 0, 0)
