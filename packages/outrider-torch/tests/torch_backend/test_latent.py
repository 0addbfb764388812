"""Attention on latents on torch: parity, and the same bits in any company, on any number of threads."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from outrider.cache import CacheSpec
from outrider.cache.pool import token_bytes
from outrider.models.base import LoadedModel
from outrider.models.factory import make_model
from outrider.verify.arrays import host
from outrider.verify.tree import path_to
from tests import small_models
from tests.latent.reference import SHAPES, logits, tiny_config
from tests.latent.test_latent import LENGTH, TOKENS, run

every_shape = pytest.mark.parametrize("shape", SHAPES)


@cache
def model(shape: str) -> LoadedModel:
    config = tiny_config(shape)
    return make_model(config, small_models.tensors(config), dtype="float32", implementation="torch")


@every_shape
def test_equals_keys_and_values_made_of_latents(shape: str) -> None:
    wanted = logits(tiny_config(shape), small_models.tensors(tiny_config(shape)), TOKENS[:LENGTH])
    found = host(run(model(shape), [LENGTH]))
    assert float(np.abs(found - wanted).max() / np.abs(wanted).max()) < 2e-6


@every_shape
def test_has_the_same_bits_in_runs_of_any_size(shape: str) -> None:
    wanted, before = run(model(shape), [1, 1, 1, LENGTH]), torch.get_num_threads()
    for threads, sizes in ((1, [LENGTH]), (3, [5, 1, 17])):
        torch.set_num_threads(threads)
        try:
            found = run(model(shape), sizes, "paged")
        finally:
            torch.set_num_threads(before)
        assert small_models.identical(found, wanted)


@every_shape
def test_has_the_same_bits_on_a_path_of_a_tree(shape: str) -> None:
    target, rng = model(shape), random.Random(5)
    rows = target.new_cache(CacheSpec(slots=2, max_seq_len=600, kind="paged"))
    slot, other = rows.allocate(), rows.allocate()
    for start in (125, 508):
        rows.truncate_to(slot, 0)
        small_models.feed(target, rows, (slot, (TOKENS * 4)[:start]))
        parents = [rng.randint(max(-1, i - 4), i - 1) for i in range(9)]
        path, tokens = path_to(parents, 8), [rng.randrange(70) for _ in parents]
        chain = small_models.feed(target, rows, (slot, [tokens[i] for i in path]), (other, TOKENS[:3]))[0]
        after = small_models.feed(target, rows, (slot, TOKENS[:3]))[0]
        rows.truncate_to(slot, start)
        tree = small_models.feed(target, rows, (slot, tokens), parents=parents)[0]
        assert small_models.identical(tree[path], chain)
        rows.keep_path(slot, start, path)
        assert small_models.identical(small_models.feed(target, rows, (slot, TOKENS[:3]))[0], after)


def test_a_bias_of_the_latents_alone_is_read() -> None:
    """DeepSeek-V2-Lite's queries are made without a bias, whatever ``attention_bias`` says."""
    config = replace(tiny_config("direct"), attention_bias=True)
    tensors = small_models.tensors(config)
    assert "model.layers.0.self_attn.q_proj.bias" not in tensors
    biased = run(make_model(config, tensors, dtype="float32", implementation="torch"), [LENGTH])
    wanted = run(make_model(config, tensors, dtype="float32"), [LENGTH])
    assert np.abs(host(biased) - host(wanted)).max() < 4e-6 * np.abs(host(wanted)).max()


def test_caches_the_latent_alone() -> None:
    pool = model("rank").new_cache(CacheSpec(max_seq_len=64)).pool
    size = token_bytes(layers=3, kv_heads=1, head_dim=64, value_dim=48, dtype=torch.float32)
    assert size == sum(held[0].nbytes for held in pool.arrays)
    assert not pool.v
