"""In every family a row's logits are the same, bit for bit, however it is scored (see ``test_invariance``)."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from functools import cache

import pytest
import torch

from outrider.cache import CacheSpec
from outrider.models.base import LoadedModel
from outrider.models.factory import make_model
from outrider.native.library import library
from outrider.verify.arrays import Floats
from outrider.verify.tree import path_to
from outrider_torch.models.llama import LlamaModel
from tests import small_models
from tests.families import MEMBERS, VOCAB, config_of
from tests.models.test_invariance import in_chunks, machine

LENGTH = 150  # crosses the 128 keys of a chunk
TOKENS = small_models.ids(600, VOCAB)
KINDS = ["torch", *(("bf16", "int8") if library() is not None else ())]

QUANTISED = ("gemma2", "starcoder2", "mixtral", "qwen3-moe")  # whose other operations differ most from Llama's
every_cell = pytest.mark.parametrize(
    ("member", "kind"),
    [
        pytest.param(member, kind, marks=[pytest.mark.slow] if kind == "int8" and member not in QUANTISED else [])
        for member in MEMBERS
        for kind in KINDS
    ],
)


@cache
def model(member: str, kind: str) -> LoadedModel:
    config = replace(config_of(member), max_seq_len=640)
    tensors = small_models.tensors(config)
    if kind == "torch":
        return LlamaModel(config, tensors, dtype=torch.float32)
    return make_model(config, tensors, dtype=small_models.DTYPES[kind])


@cache
def reference(member: str, kind: str) -> Floats:
    with machine(1, "portable"):
        return in_chunks(model(member, kind), TOKENS[:LENGTH], [1] * 3 + [LENGTH])


@every_cell
def test_in_runs_of_any_size(member: str, kind: str) -> None:
    for threads, isa, sizes in ((2, "best", [LENGTH]), (3, "best", [5, 1, 17]), (2, "portable", [33, 2])):
        with machine(threads, isa):
            assert small_models.identical(
                in_chunks(model(member, kind), TOKENS[:LENGTH], sizes), reference(member, kind)
            )


@every_cell
def test_in_any_company(member: str, kind: str) -> None:
    """A mixture's rows choose other experts in each company."""
    target, wanted = model(member, kind), reference(member, kind)
    kv = target.new_cache(CacheSpec(slots=3, max_seq_len=LENGTH))
    slots = [kv.allocate() for _ in range(3)]
    held = dict(zip(slots, (3, 37, 126), strict=True))
    small_models.feed(target, kv, *((slot, TOKENS[:n]) for slot, n in held.items()))
    for count, order in zip((1, 2, 5), itertools.permutations(held), strict=False):
        found = small_models.feed(target, kv, *((slot, TOKENS[held[slot] : held[slot] + count]) for slot in order))
        assert len(found) == len(held)
        for slot, logits in zip(order, found, strict=True):
            assert small_models.identical(logits, wanted[held[slot] : held[slot] + count])
            kv.truncate_to(slot, held[slot])


@every_cell
def test_as_a_path_of_a_tree(member: str, kind: str) -> None:
    """Before and after its siblings are dropped; across a block of 512 keys of torch as well."""
    target, rng = model(member, kind), random.Random(5)
    for start in (18, 125, *((508,) if kind == "torch" else ())):
        kv = target.new_cache(CacheSpec(max_seq_len=600))
        slot = kv.allocate()
        small_models.feed(target, kv, (slot, TOKENS[:start]))
        parents = [rng.randint(max(-1, i - 4), i - 1) for i in range(9)]
        path, tokens = path_to(parents, 8), [rng.randrange(VOCAB) for _ in parents]
        chain = small_models.feed(target, kv, (slot, [tokens[i] for i in path]))[0]
        after = small_models.feed(target, kv, (slot, TOKENS[:3]))[0]
        kv.truncate_to(slot, start)
        tree = small_models.feed(target, kv, (slot, tokens), parents=parents)[0]
        assert small_models.identical(tree[path], chain)
        kv.keep_path(slot, start, path)
        assert small_models.identical(small_models.feed(target, kv, (slot, TOKENS[:3]))[0], after)
