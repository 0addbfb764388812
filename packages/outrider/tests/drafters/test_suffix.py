"""Suffix drafts: from this text and earlier ones, likely nodes first, as deep as the match is long."""

from __future__ import annotations

from array import array
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.drafters.datastore import MAX_MATCH
from outrider.drafters.text.occurrences import TYPE, occurrences
from outrider.drafters.text.responses import Responses
from outrider.drafters.text.suffix import SuffixDrafter
from outrider.drafters.text.suffix_tree import FREE_NODES, OWN, SHARED, continuations, predict
from outrider.engine.request import Request
from outrider.utils.partitioned_store import DOMAIN_BYTES
from outrider.verify.draft import EMPTY, Draft
from outrider.verify.tree import children, depths
from tests.arrays import softmax
from tests.drafters.views import grow, request

CHAINS = {"verifier": "rejection"}


def drafted(tokens: list[int], budget: int = 8, **options: object) -> Draft:
    drafter, view = SuffixDrafter(100), request(tokens, speculation=options)
    drafter.start(view)
    (draft,) = drafter.propose([view], [budget])
    return draft


def serve(drafter: SuffixDrafter, view: Request, output: list[int]) -> None:
    """A request from its start to its end."""
    drafter.start(view)
    grow(drafter, view, output)
    drafter.finish(view.id)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2, 3, 4, 5, 1, 2], (3, 4, 5)),
        ([1, 2] * 12, (1, 2, 1, 2, 1, 2, 1, 2)),  # goes on with its period
        ([5, 5], (5, 5, 5)),
        ([1, 2, 3], ()),
        ([1], ()),
    ],
)
def test_copies(tokens: list[int], expected: tuple[int, ...]) -> None:
    draft = drafted(tokens, 8)
    assert draft.tokens == expected
    assert draft.is_chain
    assert draft.q_logits is None


def test_branches_where_the_text_went_on_differently() -> None:
    draft = drafted([1, 2, 3, 9, 1, 2, 4, 9, 1, 2], 6)
    assert {draft.tokens[i] for i in children(draft.parents)[0]} == {3, 4}
    assert draft.tokens[0] == 4  # the later of equals
    chain = drafted([1, 2, 3, 9, 1, 2, 4, 9, 1, 2], 6, **CHAINS)
    assert chain.is_chain
    assert chain.tokens[0] == 4


def test_more_frequent_continuations_come_first() -> None:
    tokens = [7, 3, 0, 7, 3, 1, 7, 4, 2, 7]
    assert drafted(tokens, 1).tokens == (3,)


def test_longer_matches_draft_more() -> None:
    lengths = []
    for match in (1, 2, 4, 8, 16):
        text = list(range(60))
        lengths.append(len(drafted([*text, 99, *text[20 - match : 20]], 40, spec_length=40)))
    assert lengths == sorted(lengths)
    assert lengths[0] == FREE_NODES
    assert lengths[2] >= 8
    assert lengths[-1] > 20


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 12))
def test_any_text(tokens: list[int], budget: int) -> None:
    tree, chain = drafted(tokens, budget), drafted(tokens, budget, **CHAINS)
    assert chain.is_chain
    assert bool(tree) == bool(chain) == (tokens[-1] in tokens[:-1])
    for draft in (tree, chain):
        assert len(draft) <= budget
        assert set(draft.tokens) <= set(tokens)
        for below in children(draft.parents):
            assert len({draft.tokens[i] for i in below}) == len(below)
    if tree:
        assert max(depths(tree.parents)) < budget


@given(st.lists(st.integers(0, 3), min_size=2, max_size=60))
def test_shares_are_probabilities(tokens: list[int]) -> None:
    own = array(TYPE, tokens)
    found = occurrences(own, own[-MAX_MATCH:], 16)
    options = predict([*continuations(own, found, OWN), *continuations(own, found, SHARED)], (), own)
    assert bool(options) == bool(found)
    assert all(option.share > 0 for option in options.values())
    assert sum(option.share for option in options.values()) < 1


def test_confidence_grows_with_the_match_and_is_that_of_a_single_occurrence() -> None:
    for table in (OWN, SHARED):
        assert [w.confidence for w in table] == sorted(w.confidence for w in table)
        for w in table[1:]:
            assert (1 - w.discount) / (1 + w.strength) == pytest.approx(w.confidence)
            assert 0 <= w.discount < 1
    assert all(own.confidence > shared.confidence for own, shared in zip(OWN[1:], SHARED[1:], strict=True))


def test_follows_the_output_step_by_step() -> None:
    drafter, view = SuffixDrafter(100), request([1, 2, 3, 1])
    drafter.start(view)
    for output in ([2], [3, 1], [9, 1, 2, 9], [1]):
        grow(drafter, view, output)
        (draft,) = drafter.propose([view], [8])
        assert draft == drafted(view.tokens)


def test_learns_from_earlier_responses_of_the_same_salt() -> None:
    drafter = SuffixDrafter(100)
    first, twin, other = request([50], id="1"), request([60, 2], id="2"), request([60, 2], id="3")
    first.cache_salt = twin.cache_salt = "tenant"
    serve(drafter, first, [1, 2, 3, 4])
    for view in (twin, other):
        drafter.start(view)
    drafts = drafter.propose([twin, other], [4, 4])
    assert drafts[0].tokens == (3, 4)
    assert drafts[1] is EMPTY
    grow(drafter, twin, [50])  # a prompt is not a response
    assert drafter.propose([twin], [4]) == [EMPTY]


def test_a_text_of_its_own_is_believed_more_than_another_s() -> None:
    drafter = SuffixDrafter(100)
    serve(drafter, request([50], id="1"), [1, 2, 8, 8])
    view = request([1, 2, 3, 4, 1, 2], id="2")
    drafter.start(view)
    (draft,) = drafter.propose([view], [1])
    assert draft.tokens == (3,)


def size_of(*responses: list[int]) -> int:
    """Bytes of a domain that holds these responses."""
    held = Responses()
    for i, response in enumerate(responses):
        held.add(str(i), response)
    return held.size + DOMAIN_BYTES


def test_keeps_no_more_responses_than_it_may() -> None:
    capacity = size_of(*[[1, 2, 3, 4]] * 3)
    drafter = SuffixDrafter(100, capacity=capacity)
    for i in range(9):
        serve(drafter, request([50], id=str(i)), [i, i + 20, i + 40, i + 60])
    serve(drafter, request([50], id="long"), [*range(1000)])  # would push out all others, and itself
    held = drafter.responses.open("").store
    assert (len(held), held.tokens, drafter.responses.size) == (3, 12, capacity)
    nothing = SuffixDrafter(100, capacity=0)
    serve(nothing, request([50]), [1, 2, 3])
    assert len(nothing.responses) == 0


def test_a_domain_that_is_forgotten_goes_on_drafting_from_its_own_text() -> None:
    drafter = SuffixDrafter(100, capacity=size_of([1, 2, 3, 4]))
    serve(drafter, request([50], id="1"), [1, 2, 3, 4])
    mine, other = request([7, 8, 9, 7, 1, 2], id="2"), request([50], id="3")
    other.cache_salt = other.tenant = "other"
    drafter.start(mine)
    assert drafter.propose([mine], [4])[0].tokens == (3, 4)
    serve(drafter, other, [5, 6, 7, 8])
    grow(drafter, mine, [3])
    assert drafter.propose([mine], [4]) == [EMPTY]
    grow(drafter, mine, [7, 8])
    assert drafter.propose([mine], [1])[0].tokens == (9,)
    drafter.finish(mine.id)


def test_counts_as_q() -> None:
    """Tokens are drawn from the shares, which q states."""
    prompt = [1, 5, 1, 5, 1, 6, 1]
    drawn: Counter[int] = Counter()
    drafter = SuffixDrafter(10)
    for seed in range(300):
        view = request(prompt, id=str(seed), seed=seed, speculation=CHAINS | {"counts_as_q": True})
        drafter.start(view)
        (draft,) = drafter.propose([view], [2])
        assert draft.q_logits is not None
        q = softmax(draft.q_logits)
        assert all(q[i, token] > 0 for i, token in enumerate(draft.tokens))
        drawn[draft.tokens[0]] += 1
    assert drawn[5] + drawn[6] == 300
    share = float(q[0, 5])
    assert np.isclose(q.sum(-1), 1).all()
    assert 0.5 < share < 1
    assert abs(drawn[5] - 300 * share) < 4 * (300 * share * (1 - share)) ** 0.5
