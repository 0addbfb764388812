"""A draft model that is drafted for proposes what it would have proposed alone."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from outrider.cache import CacheSpec
from outrider.drafters.api import Drafter
from outrider.drafters.draft_cache import PREFILL_CHUNK, DraftModel
from outrider.drafters.model.model import ModelDrafter
from outrider.drafters.text.ngram import NgramDrafter
from outrider.models.toy import TableModel
from outrider.verify.draft import Draft
from outrider_drafters.hierarchical import HierarchicalDrafter
from outrider_drafters.request_views import with_drafted
from tests.drafters.test_model import TABLE, VOCAB, Counting
from tests.drafters.views import grow, propose, request
from tests.small_engines import Scripted


def wrap(model: TableModel, seq: int = 2000) -> DraftModel:
    return DraftModel(model, vocab_size=VOCAB, cache=CacheSpec(slots=2, max_seq_len=seq))


def table(seed: int, mix: float = 0.0) -> TableModel:
    """Another model; ``mix`` of it is the table that is drafted for."""
    other = TableModel.random(VOCAB, order=3, seed=seed, scale=3.0).table
    return TableModel(mix * TABLE.table + (1 - mix) * other, max_seq_len=2000)


def inner(kind: str) -> Drafter:
    if kind == "ngram":
        return NgramDrafter(VOCAB)
    if kind == "model":
        return ModelDrafter(wrap(table(8, mix=0.7)))
    return Scripted(lambda view, budget: Draft.chain([0] * budget))


@pytest.mark.parametrize("kind", ["ngram", "model", "wrong"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 1.0},
        {"temperature": 1.0, "verifier": "rejection"},
        {"temperature": 1.2, "top_k": 3, "presence_penalty": 0.5},
        {"verifier": "rejection"},
    ],
)
def test_the_same_proposals(kind: str, options: dict[str, Any]) -> None:
    params = dict(options)
    speculation = {"verifier": params.pop("verifier", "matching")}
    big = table(0, mix=1.0)
    plain, layered = ModelDrafter(wrap(big)), HierarchicalDrafter(wrap(big), inner(kind))
    rng = random.Random(1)
    view = request([1, 2, 3, 1, 2, 3, 1], speculation=speculation, seed=5, **params)
    plain.start(view)
    layered.start(view)
    for _ in range(12):
        budget = rng.randint(1, 7)
        expected, draft = propose(plain, view, budget), propose(layered, view, budget)
        assert draft.tokens == expected.tokens
        assert (draft.q_logits is None) == (expected.q_logits is None)
        if draft.q_logits is not None and expected.q_logits is not None:
            assert np.array_equal(draft.q_logits, expected.q_logits)
        cached = layered._model.sequences[view.id].cached
        assert cached == [*view.tokens, *draft.tokens][: len(cached)]
        accepted = draft.tokens[: rng.randint(0, budget)]
        grow(layered, view, [*accepted, rng.randrange(VOCAB)], draft)
    layered.finish(view.id)
    assert layered._model.cache.free_tokens() == 2 * 2000


@pytest.mark.parametrize("tree", [(2, 2, 1), (-1, 0, -1, 1), "dynamic", "learned"])
@pytest.mark.parametrize("kind", ["ngram", "model", "wrong"])
def test_beside_a_source_that_takes_trees_it_drafts_its_chain(kind: str, tree: Any) -> None:
    chain, beside = (HierarchicalDrafter(wrap(table(0, mix=1.0)), inner(kind)) for _ in range(2))
    tokens = [1, 2, 3, 1, 2, 3, 1]
    plain = request(tokens, speculation={"spec_length": 4}, seed=5, temperature=1.0)
    treed = request(
        tokens, speculation={"draft": "model+hierarchical", "tree": tree, "spec_length": 4}, seed=5, temperature=1.0
    )
    for drafter, view in ((chain, plain), (beside, treed)):
        drafter.start(view)
    expected, draft = propose(chain, plain, 4), propose(beside, treed, 4)
    assert len(draft) == 4
    assert draft.is_chain
    assert draft.tokens == expected.tokens


@pytest.mark.parametrize("verifier", ["matching", "rejection", "sequoia"])
def test_a_token_drafted_for_another_source_has_the_noise_of_its_own_place(verifier: str) -> None:
    """And so does not repeat the draws of the tokens before it, which would make them depend on one another."""
    view, row = request([1, 2, 3], speculation={"verifier": verifier}, temperature=1.0), np.zeros(1000, np.float32)
    own, behind = view.draws(), with_drafted(view, [4, 0], 3).draws()
    for depth in range(3):
        place = {"depth": depth + 2, "node": depth + 2}
        assert behind.draw(row, depth=depth, node=depth) == own.draw(row, **place)
        assert behind.siblings(row, 3, depth=depth, node=depth) == own.siblings(row, 3, **place)
    assert behind.draw(row, depth=0, node=0) != own.draw(row, depth=0, node=0)


def test_in_fewer_runs() -> None:
    """An inner source that is always right: one run for the whole chain."""
    model = Counting(TABLE.table, max_seq_len=2000)
    perfect = HierarchicalDrafter(wrap(model), ModelDrafter(wrap(table(0, mix=1.0))))
    for verifier, temperature in (("matching", 0.0), ("matching", 1.0), ("rejection", 1.0)):
        view = request([1, 2, 3], speculation={"verifier": verifier, "spec_length": 6}, temperature=temperature)
        model.fed = []
        perfect.start(view)
        assert len(propose(perfect, view, 6)) == 6
        assert model.fed == [3 + 5]
        perfect.finish(view.id)


def test_a_long_prompt_is_read_in_pieces() -> None:
    model = Counting(TABLE.table, max_seq_len=2000)
    source, view = HierarchicalDrafter(wrap(model), inner("wrong")), request([1] * (2 * PREFILL_CHUNK))
    source.start(view)
    alone = ModelDrafter(wrap(table(0, mix=1.0)))
    alone.start(view)
    assert propose(source, view, 3).tokens == propose(alone, view, 3).tokens
    assert model.fed[:3] == [PREFILL_CHUNK, PREFILL_CHUNK - 1, 1 + 2]


def test_two_requests_and_no_room() -> None:
    views = [request([1, 2, 3], id="a"), request([4] * 62, id="b")]
    source = HierarchicalDrafter(wrap(table(0, mix=1.0), seq=64), inner("ngram"))
    for view in views:
        source.start(view)
    drafts = source.propose(views, [5, 5])
    assert [len(draft) for draft in drafts] == [5, 2]
