"""N-gram tables: the hash, back-off, ties, live updates, and counts as q."""

from __future__ import annotations

import gc
import weakref
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.drafters.text.counts import CountsDrafter
from outrider.drafters.text.ngram import NgramDrafter, NgramTable, context_hash, most_frequent
from outrider.verify.draft import EMPTY
from tests.arrays import softmax
from tests.drafters.views import grow, propose, request


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", 0xCBF29CE484222325),
        (b"a", 0xAF63DC4C8601EC8C),
        (b"b", 0xAF63DF4C8601F1A5),
        (b"fo", 0x08985907B541D342),
        (b"foobar", 0x85944171F73967E8),
    ],
)
def test_hash_is_fnv_1a(text: bytes, expected: int) -> None:
    """Values published with the algorithm (draft-eastlake-fnv, appendix C)."""
    assert context_hash(list(text)) == expected


def test_hash_takes_whole_token_ids() -> None:
    assert context_hash([49151]) == ((0xCBF29CE484222325 ^ 49151) * 0x100000001B3) % 2**64
    assert context_hash([1, 2]) != context_hash([2, 1])


def test_longer_contexts_come_first() -> None:
    table = NgramTable()
    table.update([1, 2, 3, 9, 5, 2, 3, 7, 3, 8])
    assert table.followers([1, 2, 3]) == {9: 1}
    assert table.followers([4, 2, 3]) == {9: 1, 7: 1}
    assert table.followers([4, 4, 3]) == {9: 1, 7: 1, 8: 1}
    assert table.followers([3]) == {9: 1, 7: 1, 8: 1}
    assert table.followers([4, 4, 4]) is None
    assert table.followers([8]) is None  # nothing has followed it yet
    assert table.followers([]) is None


def test_most_frequent_then_most_recent() -> None:
    table = NgramTable()
    table.update([1, 5, 1, 6])
    assert most_frequent(table.followers([1]) or {}) == 6
    table.update([1, 6, 1, 5])
    assert table.followers([1]) == {5: 2, 6: 2}
    assert most_frequent(table.followers([1]) or {}) == 5
    table.update([1, 6])
    assert most_frequent(table.followers([1]) or {}) == 6


@given(st.lists(st.integers(0, 3), max_size=60), st.lists(st.integers(0, 3), max_size=3))
def test_equals_counting_afresh(tokens: list[int], context: list[int]) -> None:
    counts: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for n in (1, 2, 3):
        for i in range(n, len(tokens)):
            counts[tuple(tokens[i - n : i])][tokens[i]] += 1
    expected = next((counts[k] for n in (3, 2, 1) if len(context) >= n and (k := tuple(context[-n:])) in counts), None)
    table = NgramTable()
    for token in tokens[:7]:
        table.update([token])
    table.update(tokens[7:])
    assert table.followers(context) == expected


def test_chains_its_own_predictions() -> None:
    drafter, view = NgramDrafter(10), request([1, 2, 3, 4, 1])
    drafter.start(view)
    draft = propose(drafter, view, 6)
    assert draft.tokens == (2, 3, 4, 1, 2, 3)
    assert draft.q_logits is None
    assert draft.source == "ngram"
    assert propose(drafter, view, 2).tokens == (2, 3)


def test_what_came_once_is_believed_less_than_what_came_often() -> None:
    def sure(times: int) -> float:
        table = NgramTable()
        for _ in range(times):
            table.update([1, 2])
        found = table.best([1])
        assert found is not None
        return found[1]

    assert sure(1) < 0.5 < sure(2) < sure(20) < 1


def test_stops_where_it_knows_nothing() -> None:
    drafter, view = NgramDrafter(10), request([1, 2, 3, 1])
    drafter.start(view)
    view.tokens.append(9)
    assert propose(drafter, view, 4) is EMPTY
    view.tokens[-1] = 2
    assert propose(drafter, view, 2).tokens == (3, 1)


def test_learns_from_the_output_and_forgets_with_the_request() -> None:
    drafter, view = NgramDrafter(10), request([1])
    drafter.start(view)
    assert propose(drafter, view, 4) is EMPTY
    grow(drafter, view, [2, 3, 1])
    assert propose(drafter, view, 3).tokens == (2, 3, 1)
    other = request([1], id="other")
    drafter.start(other)
    assert propose(drafter, other, 4) is EMPTY  # nothing is shared between requests
    drafter.finish(view.id)
    drafter.finish(view.id)
    drafter.start(view := request([1]))
    assert propose(drafter, view, 4) is EMPTY


def test_counts_of_a_finished_request_are_dropped() -> None:
    made: list[weakref.ref[NgramTable]] = []

    def make() -> NgramTable:
        table = NgramTable()
        made.append(weakref.ref(table))
        return table

    drafter = CountsDrafter("x", 10, make, context=3)
    drafter.start(request([1, 2], id="a"))
    drafter.start(request([1, 2], id="b"))
    drafter.finish("a")
    gc.collect()
    assert [table() is None for table in made] == [True, False]


def test_counts_as_q() -> None:
    """Rows of q are the counts, normalised, and tokens are drawn from them."""
    prompt = [1, 5, 1, 5, 1, 6, 1]
    drawn: Counter[int] = Counter()
    drafter = NgramDrafter(10)
    for seed in range(400):
        view = request(prompt, id=str(seed), seed=seed, speculation={"verifier": "rejection", "counts_as_q": True})
        drafter.start(view)
        draft = propose(drafter, view, 2)
        assert draft.q_logits is not None
        q = softmax(draft.q_logits)
        np.testing.assert_allclose(q.sum(-1), np.ones(2), rtol=1e-7)
        assert all(q[i, token] > 0 for i, token in enumerate(draft.tokens))
        # after (6, 1) nothing is known but what follows 1: 5 twice, 6 once
        np.testing.assert_allclose(q[0, [5, 6]], [2 / 3, 1 / 3], rtol=1e-7, atol=1e-7)
        assert draft.tokens[1] == 1
        drawn[draft.tokens[0]] += 1
    assert 230 < drawn[5] < 300  # 267 expected, standard deviation 9.4
    assert drawn[5] + drawn[6] == 400
