"""Keys and values in another precision than weights: 8-bit codes with a scale for each head of each token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from outrider.cache import CacheSpec, KVCache
from outrider.cache.pool import RowShape
from outrider.config import SamplingParams
from outrider.config.engine import EngineConfig, KVCacheDType
from outrider.engine.memory_plan import row_bytes
from outrider.errors import ConfigError
from outrider.models.base import LoadedModel
from outrider.models.factory import make_model
from outrider.native.library import library
from outrider.verify.arrays import Floats
from outrider_torch.cache_pool import TorchPool
from tests import small_models
from tests.pairwise import pairwise
from tests.small_engines import engine, request, run

native = pytest.mark.skipif(library() is None, reason="no native library")
CONFIG = small_models.config(head_dim=20, hidden_size=72)  # heads that fill no vector
TOKENS = small_models.ids(40)


def model(kv_cache_dtype: KVCacheDType, **changes: Any) -> LoadedModel:
    weights = small_models.tensors(CONFIG) | changes
    return make_model(CONFIG, weights, dtype="float32", kv_cache_dtype=kv_cache_dtype)


def filled(target: LoadedModel, tokens: Sequence[int] = TOKENS, **spec: Any) -> tuple[KVCache, Floats]:
    """A cache that has read the tokens in slot 0, and their logits."""
    cache = target.new_cache(CacheSpec(max_seq_len=128, **spec))
    return cache, small_models.feed(target, cache, (cache.allocate(), tokens))[0]


def coded(k: Floats, v: Floats) -> TorchPool:
    """Rows of one layer in 8 bits, as torch rounds them."""
    shape = RowShape(layers=1, kv_heads=CONFIG.num_kv_heads, head_dim=CONFIG.head_dim, dtype=torch.int8)
    pool = TorchPool.make(len(k), shape, block=16, filler=0, spare=0)
    pool.write(0, slice(0, len(k)), torch.from_numpy(k), torch.from_numpy(v))
    return pool


@native
def test_codes_and_scales_are_those_of_the_exact_keys() -> None:
    """The library rounds as ``TorchPool.write`` does, so that both can be told from a cache in float32."""
    exact, _ = filled(model("float32"))
    found, _ = filled(model("int8"))
    again = coded(*exact.read(0, 0, 40))  # of layer 0, whose inputs are the same
    assert np.abs(found.pool.k[0]).max() == 127
    for ours, theirs in ((found.pool.k, again.k), (found.pool.v, again.v)):
        assert np.array_equal(ours[0][:40], theirs[0][:40].numpy())
    for ours, theirs in ((found.pool.k_scales, again.k_scales), (found.pool.v_scales, again.v_scales)):
        assert np.array_equal(ours[0][:40], theirs[0][:40].numpy())


@native
def test_attention_reads_codes_times_scales() -> None:
    """Other scales behind the library's back: the next token's logits move, by values as by keys."""
    target = model("int8")
    for which in ("k_scales", "v_scales"):
        cache, _ = filled(target)
        before = small_models.feed(target, cache, (0, [5]))[0]
        cache.truncate_to(0, 40)
        getattr(cache.pool, which)[0][:40] *= 0.5
        assert not np.allclose(small_models.feed(target, cache, (0, [5]))[0], before, rtol=1e-3)


@native
def test_logits_are_near_those_of_exact_keys() -> None:
    (_, exact), (_, rounded) = filled(model("float32")), filled(model("int8"))
    assert not np.array_equal(exact, rounded)
    assert np.linalg.norm(exact - rounded) < 0.01 * np.linalg.norm(exact)


@native
@pytest.mark.parametrize("block", [1, 16])
def test_paged_has_the_bits_of_contiguous(block: int) -> None:
    target = model("int8")
    paged, logits = filled(target, kind="paged", block_size=block)
    contiguous, wanted = filled(target)
    assert small_models.identical(logits, wanted)
    assert small_models.identical(
        *(small_models.feed(target, cache, (0, TOKENS[:5]))[0] for cache in (paged, contiguous))
    )


@native
def test_a_shared_block_is_copied_with_its_scales() -> None:
    """Copy on write: two sequences with one beginning, one of them cut within a shared block."""
    target = model("int8")
    cache, _ = filled(target, kind="paged", block_size=16, slots=2)
    cache.publish_prefix(0, TOKENS)
    other = cache.allocate([*TOKENS[:32], 1])
    assert cache.length(other) == 32
    cache.truncate_to(other, 20)
    found = small_models.feed(target, cache, (other, TOKENS[20:]))[0]
    assert small_models.identical(found, filled(target)[1][20:])
    cache.check()


@native
def test_a_broken_row_is_seen_by_those_after_it() -> None:
    """8-bit codes have no NaN: the scale must say so, or later logits would be wrong and finite."""
    target = model("int8")
    cache, _ = filled(target)
    broken = np.ones((1, CONFIG.num_kv_heads, CONFIG.head_dim), np.float32)
    for bad in (np.nan, np.inf):
        broken[0, 1, 7] = bad
        rows, pool = coded(broken, broken), cache.pool
        for held, given in zip((pool.k, pool.v, pool.k_scales, pool.v_scales), rows.arrays, strict=True):
            held[0][3] = given[0].numpy()  # of layer 0, as of slot 0
        assert np.isnan(cache.pool.k_scales[0][3]).tolist() == [False, True]
        assert np.isnan(small_models.feed(target, cache, (0, [5]))[0]).all()


@native
@pytest.mark.parametrize("kv_cache_dtype", ["float32", "bfloat16", "int8"])
def test_keys_that_overflow_never_give_numbers(kv_cache_dtype: KVCacheDType) -> None:
    """One output of the first layer's keys is infinite, so that no score is a number.

    A forward pass that went well leaves its results in memory, which must not be taken for those of this one.
    """
    name = "model.layers.0.self_attn.k_proj.weight"
    overflowing = small_models.tensors(CONFIG)[name].clone()
    overflowing[0] = 3e38
    broken, well = model(kv_cache_dtype, **{name: overflowing}), model(kv_cache_dtype)
    for _ in range(3):
        filled(well, TOKENS[:3])
        cache, logits = filled(broken, TOKENS[:3])
        assert np.isnan(logits).all()
        if kv_cache_dtype == "int8":
            assert np.isnan(cache.pool.k_scales[0][:3]).tolist() == [[True, False]] * 3


FACTORS = (("contiguous", "paged"), ("greedy", "sampled"), ("ngram", "lookup", "model", "layer_skip"))


@native
@pytest.mark.parametrize(("kind", "sampling", "source"), pairwise(*FACTORS))
def test_drafts_change_nothing(kind: Any, sampling: str, source: str) -> None:
    options: dict[str, Any] = {} if sampling == "greedy" else {"temperature": 0.9, "seed": 6}
    params, prompt = SamplingParams(max_tokens=24, logprobs=2, **options), [*TOKENS[:20], *TOKENS[:20]]
    target = model("int8")
    plain, drafted = (
        run(engine(target, kind=kind), request(prompt, params, draft=draft))["r"] for draft in ("none", source)
    )
    assert [(o.token_id, o.logprobs) for o in plain] == [(o.token_id, o.logprobs) for o in drafted]


def test_memory_is_counted_with_scales() -> None:
    """Two layers, two key heads: 20 numbers and a scale each, for keys and for values."""
    if library() is not None:
        assert row_bytes(model("int8")) == 2 * 2 * 2 * (20 + 4)
        assert row_bytes(model("bfloat16")) == 2 * 2 * 2 * 20 * 2
    assert row_bytes(model("float32")) == 2 * 2 * 2 * 20 * 4


def test_auto_follows_the_weights() -> None:
    assert model("auto").cache_dtype in ("float32", torch.float32)
    if library() is not None:
        assert make_model(CONFIG, small_models.tensors(CONFIG)).cache_dtype == "bfloat16"


@pytest.mark.parametrize("name", ["int8", "bfloat16"])
def test_torch_has_no_other_cache_than_its_own(name: KVCacheDType) -> None:
    """``fixed_shapes`` stands for a GPU here: it takes the path that GPUs take."""
    with pytest.raises(ConfigError, match=f"kv_cache_dtype='{name}' needs the native library.*use auto"):
        make_model(CONFIG, small_models.tensors(CONFIG), dtype="float32", kv_cache_dtype=name, fixed_shapes=True)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="kv_cache_dtype='fp8' is unknown: use one of auto, bfloat16, float32, int8"):
        EngineConfig(model="m", kv_cache_dtype="fp8")  # type: ignore[arg-type]
