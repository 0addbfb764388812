"""The target's first layers as the draft, in the target's own cache."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.cache import CacheSpec
from outrider.config import SamplingParams
from outrider.drafters.trees.draft_batch import Feed, run
from outrider.models.base import LoadedModel
from outrider.models.factory import make_model
from outrider.verify.arrays import host
from outrider.verify.draft import EMPTY
from outrider_drafters.layer_skip import LayerSkipDrafter
from tests import small_models
from tests.drafters.views import request
from tests.small_engines import engine, generate
from tests.small_engines import request as ask

SPEC = CacheSpec(max_seq_len=64)


def shallow(model: LoadedModel, layers: int) -> LoadedModel:
    """A model of its own with the first layers' weights."""
    config = small_models.config(num_layers=layers, max_seq_len=64)
    return make_model(config, small_models.tensors(small_models.config(num_layers=4)), dtype="float32")


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return small_models.llama("fp32", num_layers=4, max_seq_len=64)


def test_a_run_can_stop_early(model: LoadedModel) -> None:
    tokens = small_models.ids(9)
    for layers in (1, 2, 4):
        cache, own = model.new_cache(SPEC), shallow(model, layers)
        slot = cache.allocate()
        cache.extend(slot, 9)
        (logits,) = run(model, cache, [Feed(slot, 0, tokens, range(9), scored=9)], layers)
        other = own.new_cache(SPEC)
        (expected,) = small_models.feed(own, other, (other.allocate(), tokens))
        assert small_models.identical(host(logits), expected)
        k, v = cache.read(layers - 1, slot, 9)
        assert k.any()
        assert v.any()
        if layers < 4:
            assert not cache.read(layers, slot, 9)[0].any()  # the layers above have not run


@pytest.mark.parametrize("tree", [None, (2, 2), "dynamic"])
@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_drafts_what_a_shallow_copy_would(model: LoadedModel, tree: object, kind: str) -> None:
    """The same draft as a model of its own; what it writes lies behind the target's rows, which stay as they are."""
    spec = CacheSpec(max_seq_len=64, kind=kind)  # type: ignore[arg-type]
    cache = model.new_cache(spec)
    tokens = small_models.ids(20)
    view = request(tokens, speculation={"tree": tree, "tree_nodes": 5})
    view.slot = cache.allocate()
    small_models.feed(model, cache, (view.slot, tokens[:-1]))
    view.num_computed_tokens = len(tokens) - 1
    kept = [[t.copy() for t in cache.read(i, view.slot, view.num_computed_tokens)] for i in range(4)]
    cache.extend(view.slot, 1 + 6)  # the last token's row, and those granted to drafts
    (draft,) = LayerSkipDrafter(model, cache, layers=2, vocab_size=64).propose([view], [6])
    assert cache.length(view.slot) == len(tokens) + 6
    for i in range(4):
        for now, then in zip(cache.read(i, view.slot, view.num_computed_tokens), kept[i], strict=True):
            assert np.array_equal(now, then)
    own = shallow(model, 2)
    own_cache = own.new_cache(spec)
    view.slot = own_cache.allocate()
    small_models.feed(own, own_cache, (view.slot, tokens[:-1]))
    own_cache.extend(view.slot, 1 + 6)
    (expected,) = LayerSkipDrafter(own, own_cache, layers=2, vocab_size=64).propose([view], [6])
    assert (draft.tokens, draft.parents) == (expected.tokens, expected.parents)
    assert draft.source == "layer_skip"


def test_a_prompt_is_not_read_twice(model: LoadedModel) -> None:
    view = request(small_models.ids(5))
    cache = model.new_cache(SPEC)
    view.slot = cache.allocate()
    cache.extend(view.slot, 9)
    assert LayerSkipDrafter(model, cache, layers=2, vocab_size=64).propose([view], [3]) == [EMPTY]


def test_a_tree_stops_at_the_rows_set_aside(model: LoadedModel) -> None:
    cache = model.new_cache(SPEC)
    view = request([3, 1], speculation={"tree": "dynamic"})
    view.slot = cache.allocate()
    small_models.feed(model, cache, (view.slot, [3]))
    view.num_computed_tokens = 1
    cache.extend(view.slot, 1 + 2)
    (draft,) = LayerSkipDrafter(model, cache, layers=1, vocab_size=64).propose([view], [2])
    assert 1 <= len(draft) <= 2
    assert cache.length(view.slot) == 4


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
@pytest.mark.parametrize("tree", [None, (2, 1, 1), "dynamic"])
def test_the_target_s_output_is_its_own(model: LoadedModel, kind: str, tree: object) -> None:
    """With all layers it is always right; with fewer, output stays the same."""
    served = engine(model, kind=kind)
    for seed in range(3):
        params = SamplingParams(temperature=0.8, seed=seed, max_tokens=20)
        plain = generate(served, small_models.ids(7, seed=seed), params)
        assert generate(served, small_models.ids(7, seed=seed), params, draft="layer_skip", tree=tree) == plain
    served = engine(
        model,
        kind=kind,
        more=lambda cache: {"layer_skip": LayerSkipDrafter(model, cache, layers=4, vocab_size=64)},
    )
    r = ask(small_models.ids(7), SamplingParams(max_tokens=20), draft="layer_skip", tree=tree)
    served.add(r)
    while served.busy:
        served.step()
    assert list(r.output) == generate(served, small_models.ids(7), SamplingParams(max_tokens=20))
    assert r.stats.draft_error is None
    if tree is None:
        assert r.stats.draft_acceptance_rate == 1.0
    assert all(accepted > 0 for drafted, accepted in r.stats.rounds if drafted)
