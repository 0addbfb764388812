"""Attention on latents: parity with keys and values made of them, the same bits in any company, and what is cached."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from outrider.cache import CacheSpec
from outrider.cache.pool import token_bytes
from outrider.engine.memory_plan import row_bytes
from outrider.errors import ConfigError
from outrider.models.base import LoadedModel
from outrider.models.factory import make_model
from outrider.native.library import library
from outrider.verify.arrays import Floats
from outrider.verify.tree import path_to
from tests import small_models
from tests.latent.reference import SHAPES, logits, tiny_config
from tests.models.test_invariance import machine

pytestmark = pytest.mark.skipif(library() is None, reason="no native library")

LENGTH = 150  # crosses the 128 keys of a chunk
TOKENS = small_models.ids(LENGTH + 40, 70)
every_shape = pytest.mark.parametrize("shape", SHAPES)
every_type = pytest.mark.parametrize("kv", ["float32", "bfloat16", "int8"])


@cache
def model(shape: str, kv: Any, dtype: Any = "float32") -> LoadedModel:
    config = tiny_config(shape)
    return make_model(config, small_models.tensors(config), dtype=dtype, kv_cache_dtype=kv)


def run(target: LoadedModel, sizes: list[int], kind: Any = "contiguous") -> Floats:
    kv = target.new_cache(CacheSpec(max_seq_len=LENGTH, kind=kind))
    slot, at, parts = kv.allocate(), 0, list[Floats]()
    while at < LENGTH:
        size = sizes[len(parts) % len(sizes)]
        parts.append(small_models.feed(target, kv, (slot, TOKENS[at : min(LENGTH, at + size)]))[0])
        at += size
    return np.concatenate(parts)


@every_shape
@pytest.mark.parametrize(("kv", "error"), [("float32", 2e-6), ("bfloat16", 2e-2), ("int8", 4e-2)])
def test_equals_keys_and_values_made_of_latents(shape: str, kv: str, error: float) -> None:
    wanted = logits(tiny_config(shape), small_models.tensors(tiny_config(shape)), TOKENS[:LENGTH])
    found = run(model(shape, kv), [LENGTH])
    assert float(np.abs(found - wanted).max() / np.abs(wanted).max()) < error


@every_shape
@every_type
def test_has_the_same_bits_in_runs_of_any_size(shape: str, kv: str) -> None:
    for dtype in ("float32", "q8_0"):
        target = model(shape, kv, dtype)
        with machine(1, "portable"):
            wanted = run(target, [1, 1, 1, LENGTH])
        for threads, isa, sizes, kind in ((2, "best", [LENGTH], "contiguous"), (3, "best", [5, 1, 17], "paged")):
            with machine(threads, isa):
                assert small_models.identical(run(target, sizes, kind), wanted)


@every_shape
@every_type
def test_has_the_same_bits_on_a_path_of_a_tree(shape: str, kv: str) -> None:
    target, rng = model(shape, kv), random.Random(5)
    for kind in ("contiguous", "paged"):
        cache_ = target.new_cache(CacheSpec(slots=2, max_seq_len=LENGTH + 40, kind=kind))
        slot, other = cache_.allocate(), cache_.allocate()
        small_models.feed(target, cache_, (slot, TOKENS[:125]))
        parents = [rng.randint(max(-1, i - 4), i - 1) for i in range(9)]
        path, tokens = path_to(parents, 8), [rng.randrange(70) for _ in parents]
        chain = small_models.feed(target, cache_, (slot, [tokens[i] for i in path]), (other, TOKENS[:3]))[0]
        after = small_models.feed(target, cache_, (slot, TOKENS[:3]))[0]
        cache_.truncate_to(slot, 125)
        tree = small_models.feed(target, cache_, (slot, tokens), parents=parents)[0]
        assert small_models.identical(tree[path], chain)
        cache_.keep_path(slot, 125, path)
        assert small_models.identical(small_models.feed(target, cache_, (slot, TOKENS[:3]))[0], after)


@every_type
def test_caches_the_latent_alone(kv: Any) -> None:
    target = model("rank", kv)
    pool = target.new_cache(CacheSpec(max_seq_len=64)).pool
    sizes = {"layers": 3, "kv_heads": 1, "head_dim": 64, "value_dim": 48, "dtype": kv}
    assert row_bytes(target) == token_bytes(**sizes) == sum(held[0].nbytes for held in pool.arrays)
    assert row_bytes(target) == 3 * {"float32": 256, "bfloat16": 128, "int8": 64 + 8}[kv]
    assert not pool.v


def test_rows_can_be_read() -> None:
    """Of the same text, rows of 8 bits are near those of float32; a value is the beginning of its key."""
    found = {}
    for kv in ("float32", "int8"):
        target = model("rank", kv)
        rows = target.new_cache(CacheSpec(max_seq_len=64))
        slot = rows.allocate()
        small_models.feed(target, rows, (slot, TOKENS[:40]))
        found[kv] = k, v = rows.read(0, slot, 40)
        assert k.shape == (40, 1, 64)
        assert v.shape == (40, 1, 48)
        assert np.array_equal(k[..., :48], v)
    for first, second in zip(found["float32"], found["int8"], strict=True):
        np.testing.assert_allclose(first, second, atol=np.abs(first).max() / 127)


def test_a_part_with_small_numbers_keeps_its_precision_in_8_bits() -> None:
    """Latents and rotated parts have scales of their own."""
    config = tiny_config("rank")
    tensors = small_models.tensors(config)
    for i in range(3):
        tensors[f"model.layers.{i}.self_attn.kv_a_layernorm.weight"] *= 100
    target = make_model(config, tensors, dtype="float32", kv_cache_dtype="int8")
    rows = target.new_cache(CacheSpec(max_seq_len=64))
    slot = rows.allocate()
    small_models.feed(target, rows, (slot, TOKENS[:40]))
    k, _ = rows.read(0, slot, 40)
    assert len(np.unique(k[..., 48:])) > 300


@pytest.mark.parametrize("changes", [{"rank": 40}, {"value_dim": 24}, {"rank": 640}])
def test_sizes_that_the_library_does_not_have_are_refused(changes: dict[str, int]) -> None:
    sizes = replace(SHAPES["direct"], **changes)
    config = tiny_config("direct", latent=sizes, head_dim=sizes.row)
    with pytest.raises(ConfigError, match="kv_lora_rank"):
        make_model(config, small_models.tensors(config), dtype="float32")
