"""Recycled drafts: what the target's rows said after one or two tokens, kept per domain and within bounds."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.drafters.api import Outcome
from outrider.engine.request import Request
from outrider.utils.partitioned_store import DOMAIN_BYTES
from outrider.verify.distribution import Context, TargetRows
from outrider.verify.draft import EMPTY, Draft, Verdict
from outrider.verify.tree import depths
from outrider_drafters.recycling import CONTEXT_BYTES, WIDTH, FollowerMemory, RecyclingDrafter
from tests.drafters.views import request
from tests.utils.store_bytes import counted_over_taken

VOCAB = 12


def observe(
    drafter: RecyclingDrafter, view: Request, draft: Draft, committed: list[int], rows: list[list[int]]
) -> None:
    """Commit tokens; ``rows``: of each scored row, the target's favourites, the likeliest first."""
    logits = np.full((len(rows), VOCAB), -np.inf, np.float32)
    for row, favourites in zip(logits, rows, strict=True):
        row[favourites] = np.linspace(3, 1, len(favourites))
    drafter.start(view)
    p = TargetRows(logits, view.params, Context(view.prompt, view.output), draft)
    view.tokens += committed
    path = tuple(range(len(committed) - 1))
    drafter.observe([Outcome(view, draft, Verdict(path, committed[-1]), tuple(committed), p)])
    drafter.finish(view.id)


def drafted(drafter: RecyclingDrafter, view: Request, budget: int = 6) -> Draft:
    drafter.start(view)
    draft = drafter.propose([view], [budget])[0]
    drafter.finish(view.id)
    return draft


def test_nothing_is_known_at_first() -> None:
    assert drafted(RecyclingDrafter(VOCAB), request([1, 2, 3])) == EMPTY


def test_the_same_token_again_brings_back_what_was_likely() -> None:
    drafter, view = RecyclingDrafter(VOCAB), request([1, 2, 3])
    observe(drafter, view, EMPTY, [4], [[4, 5, 6]])
    again = request([7, 8, 3], id="again")
    draft = drafted(drafter, again)
    roots = [token for token, parent in zip(draft.tokens, draft.parents, strict=True) if parent < 0]
    assert roots == [4, 5, 6]
    assert draft.scores is not None
    assert list(draft.scores) == sorted(draft.scores, reverse=True)


def test_refused_nodes_teach_too() -> None:
    drafter, view = RecyclingDrafter(VOCAB), request([1, 2])
    observe(drafter, view, Draft((9, 5), (-1, -1), None, "any"), [4], [[4], [6], [7]])
    assert drafted(drafter, request([0, 9]), 1).tokens == (6,)
    assert drafted(drafter, request([0, 5]), 1).tokens == (7,)
    assert drafted(drafter, request([0, 4]), 1) == EMPTY  # nothing was scored behind it


def test_two_tokens_are_believed_more_than_one() -> None:
    drafter = RecyclingDrafter(VOCAB)
    observe(drafter, request([1, 3]), EMPTY, [4], [[4]])
    observe(drafter, request([2, 3]), EMPTY, [5], [[5]])
    assert drafted(drafter, request([1, 3]), 1).tokens == (4,)
    assert drafted(drafter, request([2, 3]), 1).tokens == (5,)
    assert drafted(drafter, request([9, 3]), 1).tokens == (5,)  # the last that was heard


def test_grows_along_what_it_drafts() -> None:
    drafter, view = RecyclingDrafter(VOCAB), request([1])
    for token, follower in ((1, 2), (2, 3), (3, 4)):
        observe(drafter, view, EMPTY, [follower], [[follower]])
        assert view.tokens[-2] == token
    chain = drafted(drafter, request([8, 1]), 3)
    assert chain.tokens == (2, 3, 4)
    assert chain.is_chain
    short = drafted(drafter, request([8, 1], speculation={"spec_length": 2}), 9)
    assert max(depths(short.parents)) == 1


def test_one_salt_hears_nothing_of_another() -> None:
    drafter, view = RecyclingDrafter(VOCAB), request([1, 2])
    view.cache_salt = "mine"
    observe(drafter, view, EMPTY, [4], [[4]])
    assert drafted(drafter, request([1, 2])) == EMPTY


def test_memory_is_bounded() -> None:
    drafter = RecyclingDrafter(VOCAB, capacity=6 * CONTEXT_BYTES + DOMAIN_BYTES)
    for token in range(10):
        observe(drafter, request([0, token]), EMPTY, [4], [list(range(VOCAB))])
        assert drafter.memories.size <= 6 * CONTEXT_BYTES + DOMAIN_BYTES
    assert drafted(drafter, request([0, 0])) == EMPTY
    assert len(drafted(drafter, request([0, 9]), 100).tokens) >= WIDTH


def test_counts_as_q_draws_from_what_it_reports() -> None:
    drafter = RecyclingDrafter(VOCAB)
    observe(drafter, request([1, 3]), EMPTY, [4], [[4, 5, 6]])
    view = request([1, 3], temperature=1.0, speculation={"verifier": "rejection", "counts_as_q": True})
    draft = drafted(drafter, view, 4)
    assert draft.is_chain
    assert draft.q_logits is not None
    assert np.flatnonzero(np.exp(draft.q_logits[0])).tolist() == [4, 5, 6]


def test_chains_for_verifiers_that_take_no_trees() -> None:
    drafter = RecyclingDrafter(VOCAB)
    observe(drafter, request([1, 3]), EMPTY, [4], [[4, 5, 6]])
    assert drafted(drafter, request([1, 3], speculation={"verifier": "rejection"})).tokens == (4,)


def fill(store: FollowerMemory, count: int) -> None:
    """Learn ``count`` contexts, none of which was seen before."""
    for i in range(count):
        store.learn(1_000_000 + i, 2_000_000 + i, tuple((3_000_000 + j, j / 9) for j in range(8)))


@pytest.mark.parametrize("count", [4, 400])
def test_bytes_are_counted_about_right_whatever_the_number_of_domains(count: int) -> None:
    """Within half and twice of what Python takes, as for every store."""
    assert 0.5 < counted_over_taken(FollowerMemory, fill, 8000 // count, count) < 2
