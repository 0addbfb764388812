"""What every source must keep to, on requests that go any way: budgets, levels, vocabulary, links, and its memory.

Sources that grow trees or run models; each with every shape it takes.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from outrider.cache import CacheSpec, KVCache
from outrider.drafters.api import Drafter, Outcome
from outrider.drafters.context import DrafterContext
from outrider.drafters.registry import DrafterRegistry
from outrider.drafters.trees.draft_batch import Feed, run
from outrider.engine.request import Request
from outrider.errors import ConfigError
from outrider.models.toy import TableModel
from outrider.verify.distribution import Context, TargetRows
from outrider.verify.draft import Verdict
from outrider.verify.tree import depths, path_to
from outrider_drafters.layer_skip import LayerSkipDrafter
from tests import small_models
from tests.drafters.views import request

VOCAB = 6
SPEC = CacheSpec(slots=3, max_seq_len=96)
TARGET = TableModel.random(VOCAB, order=2, seed=1)
DRAFTS = (TableModel.random(VOCAB, order=2, seed=2), TableModel.random(VOCAB, order=2, seed=3))
DEEP = small_models.llama("fp32", num_layers=7, max_seq_len=96)
SHAPES: list[dict[str, Any]] = [{}, {"tree": (3, 2, 1)}, {"tree": (-1, 0, 0, -1, 3)}, {"tree": "dynamic"}]
CASES = [
    *(("ngram", shape) for shape in SHAPES),
    *(("model", shape) for shape in SHAPES),
    *(("models", shape) for shape in SHAPES),
    *(("layer_skip", shape) for shape in SHAPES),
    ("hierarchical", {}),
    ("lookahead", {}),
    ("lookahead", {"lookahead": (5, 2, 0)}),
    ("lookahead", {"lookahead": (2, 4, 5)}),
]


class World:
    """A target's cache and the sources beside it, without an engine."""

    def __init__(self, source: str) -> None:
        self.cache: KVCache = TARGET.new_cache(SPEC)
        context = DrafterContext(
            vocab_size=VOCAB, cache=SPEC, draft_models=DRAFTS, target=TARGET, target_cache=self.cache
        )
        self.sources = DrafterRegistry(context)
        self.drafter: Drafter = self.sources[source]

    def admit(self, id: str, source: str, options: dict[str, Any], **params: Any) -> Request:
        view = request([1, 2, 3, 1, 2], id=id, speculation={"draft": source, "spec_length": 4} | options, **params)
        view.max_seq_len, view.slot = 96, self.cache.allocate()
        self.drafter.start(view)
        return view

    def grant(self, view: Request, budget: int) -> None:
        """Rows as the scheduler sets them aside: the pending tokens', and those of the draft."""
        assert view.slot is not None
        self.cache.truncate_to(view.slot, 0)
        self.cache.extend(view.slot, len(view.tokens) + budget)
        view.num_computed_tokens = len(view.tokens) - 1
        run(TARGET, self.cache, [Feed(view.slot, 0, view.tokens, range(len(view.tokens)))])

    def commit(self, view: Request, draft: Any, rng: random.Random) -> None:
        """Accept any path, and say what the target said."""
        node = rng.randrange(-1, len(draft))
        path = tuple(path_to(draft.parents, node))
        token = rng.randrange(VOCAB)
        rows = [TARGET.table[tuple(([0, 0, *view.tokens])[-2:])] for _ in range(1 + len(draft))]
        p = TargetRows(np.stack(rows), view.params, Context(view.prompt, view.output), draft)
        committed = (*(draft.tokens[i] for i in path), token)
        view.tokens += committed
        self.drafter.observe([Outcome(view, draft, Verdict(path, token), committed, p)])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("source", "options"), CASES)
def test_drafts_are_sound_whatever_happens(source: str, options: dict[str, Any], temperature: float) -> None:
    rng = random.Random(str(options))
    world = World(source)
    views = [world.admit(id, source, options, temperature=temperature, seed=i) for i, id in enumerate("ab")]
    proposed = 0
    for _ in range(10):
        budgets = [rng.choice([0, 1, 2, 3, min(7, view.draft_limit), view.draft_limit]) for view in views]
        for view, budget in zip(views, budgets, strict=True):
            world.grant(view, budget)
        drafts = world.drafter.propose(views, budgets)
        assert len(drafts) == 2
        for view, draft, budget in zip(views, drafts, budgets, strict=True):
            assert len(draft) <= budget
            assert all(0 <= token < VOCAB for token in draft.tokens)
            assert draft.q_logits is None
            assert draft.scores is None or all(0 <= score <= 1 for score in draft.scores)
            if source != "lookahead":
                assert max(depths(draft.parents), default=0) < view.depth_limit
            proposed += len(draft)
            world.commit(view, draft, rng)
    assert proposed > 20
    for view in views:
        world.drafter.finish(view.id)
        world.drafter.finish(view.id)
    for cache in getattr(world.drafter, "caches", ()):
        cache.check()
        assert cache.free_tokens() == 3 * 96
    world.admit("a", source, options)  # an id may come again


@pytest.mark.parametrize(("source", "options"), CASES)
def test_the_same_text_gets_the_same_draft(source: str, options: dict[str, Any]) -> None:
    """Alone or beside another request."""
    drafts = []
    for company in (False, True):
        world = World(source)
        views = [world.admit("a", source, options, temperature=1.0, seed=5)]
        if company:
            views.append(world.admit("b", source, options, temperature=1.0, seed=6))
            views[1].tokens += [4, 4, 5]
        for view in views:
            world.grant(view, 8)
        drafts.append(world.drafter.propose(views, [8] * len(views))[0])
    assert drafts[0].tokens == drafts[1].tokens
    assert drafts[0].parents == drafts[1].parents


def test_sources_need_what_they_are_made_of() -> None:
    alone = DrafterRegistry(DrafterContext(vocab_size=VOCAB, cache=SPEC))
    assert not {"model", "models", "hierarchical", "layer_skip"} & set(alone)
    assert {"ngram", "lookahead"} <= set(alone)
    for source in ("model", "models", "hierarchical", "layer_skip"):
        with pytest.raises(ConfigError, match=f"draft='{source}' needs"):
            alone[source]
    one = DrafterRegistry(DrafterContext(vocab_size=VOCAB, cache=SPEC, draft_models=DRAFTS[:1]))
    assert {"model", "hierarchical"} <= set(one)
    assert "models" not in set(one)


def test_layers_of_the_target() -> None:
    """A third of them unless told; more than there are is an error."""

    def layers(count: int | None) -> int:
        context = DrafterContext(
            vocab_size=64, cache=SPEC, target=DEEP, target_cache=DEEP.new_cache(SPEC), draft_layers=count
        )
        drafter = DrafterRegistry(context)["layer_skip"]
        assert isinstance(drafter, LayerSkipDrafter)
        return drafter._layers

    assert [layers(None), layers(2), layers(7)] == [2, 2, 7]
    with pytest.raises(ConfigError, match="draft_layers=8 is more than the target's 7 layers"):
        layers(8)


def test_sources_share_a_draft_model_s_cache() -> None:
    world = World("model")
    assert world.sources["models"].caches[0] is world.sources["model"].caches[0]
    assert list(world.sources["hierarchical"].caches) == world.sources["models"].caches
