"""A row's logits are the same bit for bit however the row is scored.

This is what makes "the same output" more than a statement about probabilities: speculation scores rows in other
company than plain decoding does. It holds for every precision, any number of threads and every instruction set.
Where it fails on some machine, ``certify`` and ``doctor`` will say so; here it is a defect.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, cast

import numpy as np
import pytest

from outrider.cache import CacheSpec
from outrider.models.base import LoadedModel
from outrider.models.native_llama import NativeLlamaModel
from outrider.native.context import NativeContext, current_context, own_context
from outrider.native.library import available_isas, library
from outrider.native.weights import Target, pack_array
from outrider.verify.arrays import Floats
from outrider.verify.tree import path_to
from tests import small_models
from tests.arrays import randn

VOCAB = 256
LENGTH = 1100  # crosses 512 and 1024
DIMS: dict[str, dict[str, Any]] = {
    "smollm2": {"hidden_size": 576, "intermediate_size": 1536, "num_heads": 9, "num_kv_heads": 3, "head_dim": 64},
    "g8": {"hidden_size": 256, "intermediate_size": 704, "num_heads": 8, "num_kv_heads": 1, "head_dim": 128},
    "odd": {"hidden_size": 72, "intermediate_size": 200, "num_heads": 6, "num_kv_heads": 3, "head_dim": 12},
    "window": {
        "family": "mistral",
        "hidden_size": 72,
        "intermediate_size": 200,
        "num_heads": 6,
        "num_kv_heads": 3,
        "head_dim": 12,
        "sliding_window": 40,
    },
}
SMALL = ("odd", "window")  # the fast suite's
TOKENS = small_models.ids(LENGTH, VOCAB)


def has_isa(name: str) -> bool:
    native = library()
    return native is not None and name in available_isas(native)


@cache
def model(dims: str, kind: str) -> LoadedModel:
    made = small_models.llama(kind, vocab_size=VOCAB, max_seq_len=LENGTH + 20, **DIMS[dims])
    if isinstance(made, NativeLlamaModel):
        _models.append(made)
    return made


@cache
def reference(dims: str, kind: str) -> Floats:
    """Logits [LENGTH, vocab]: the first rows and those around multiples of 128 alone, the others in small runs.

    On one thread, and by the plainest code that the processor has.
    """
    alone = {*range(40), *range(125, 132), *range(505, 520), *range(1020, 1028)}
    sizes: list[int] = []
    while sum(sizes) < LENGTH:
        at = sum(sizes)
        sizes.append(1 if at in alone else next((n for n in range(1, 64) if at + n in alone), min(64, LENGTH - at)))
    with machine(1, "portable"):
        return in_chunks(model(dims, kind), TOKENS, sizes)


@contextmanager
def machine(threads: int, isa: str) -> Iterator[None]:
    """Threads and instruction set of all that is computed inside; "best" is what the processor has."""
    if library() is None:
        yield
        return
    before = [each.context for each in _models]
    with own_context(threads, None if isa == "best" else isa):
        _use([current_context()] * len(_models))
        yield
    _use(before)


_models: list[NativeLlamaModel] = []
"""Those of ``model``."""


def _use(contexts: Sequence[NativeContext]) -> None:
    for each, context in zip(_models, contexts, strict=False):
        each.context = context


def in_chunks(model: LoadedModel, tokens: Sequence[int], sizes: Sequence[int]) -> Floats:
    """Logits of the tokens when they are fed in runs of these sizes, over and over."""
    kv = model.new_cache(CacheSpec(max_seq_len=model.config.max_seq_len))
    slot = kv.allocate()
    parts: list[Floats] = []
    at = 0
    for size in itertools.cycle(sizes):
        if at >= len(tokens):
            return np.concatenate(parts)
        parts += small_models.feed(model, kv, (slot, tokens[at : at + size]))
        at += size
    raise AssertionError


ISAS = [name for name in ("avx2", "neon", "best") if name == "best" or has_isa(name)]
SETTINGS = [(kind, threads, isa) for kind in (*small_models.DTYPES, "kv8") for threads in (1, 2, 3) for isa in ISAS]
FAST = [("bf16", 2, "best"), ("fp32", 3, "best"), ("int8", 1, "best"), ("q4", 2, ISAS[0]), ("kv8", 2, "best")]


@pytest.fixture(params=[s if s in FAST else pytest.param(s, marks=pytest.mark.slow) for s in SETTINGS], ids=str)
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """A kind of model, on some threads (three, as shares then end anywhere) and an instruction set."""
    kind, threads, isa = request.param
    with machine(threads, isa):
        yield kind


@pytest.fixture(params=[d if d in SMALL else pytest.param(d, marks=pytest.mark.slow) for d in DIMS])
def dims(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_in_runs_of_any_size(dims: str, kind: str) -> None:
    n = 66
    for size in (2, 5, 7, 17, 33, 64):
        assert small_models.identical(in_chunks(model(dims, kind), TOKENS[:n], [size]), reference(dims, kind)[:n])


@pytest.mark.parametrize("sizes", [[LENGTH], [333, 64, 1, 511], pytest.param([511], marks=pytest.mark.slow)], ids=str)
def test_prompts_cut_anywhere(dims: str, kind: str, sizes: list[int]) -> None:
    assert small_models.identical(in_chunks(model(dims, kind), TOKENS, sizes), reference(dims, kind))


def test_in_any_company(dims: str, kind: str) -> None:
    """Sequences of different lengths, in every order and in different slots of a larger cache."""
    target, wanted = model(dims, kind), reference(dims, kind)
    kv = target.new_cache(CacheSpec(slots=4, max_seq_len=LENGTH))
    slots = [kv.allocate() for _ in range(4)]
    held = {slots[0]: 3, slots[1]: 37, slots[2]: 509}
    small_models.feed(target, kv, *((slot, TOKENS[:n]) for slot, n in held.items()), (slots[3], TOKENS[100:400]))
    for count, order in zip((1, 2, 4, 5, 6, 8), itertools.permutations(held), strict=True):
        found = small_models.feed(target, kv, *((slot, TOKENS[held[slot] : held[slot] + count]) for slot in order))
        assert len(found) == len(held)
        for slot, logits in zip(order, found, strict=True):
            assert small_models.identical(logits, wanted[held[slot] : held[slot] + count])
            kv.truncate_to(slot, held[slot])


@pytest.mark.parametrize("start", [30, 505, 1018])
def test_as_a_path_of_a_tree(dims: str, kind: str, start: int) -> None:
    """Before and after its siblings are dropped; trees that cross a block of 512 rows included."""
    target, rng = model(dims, kind), random.Random(start)
    kv = target.new_cache(CacheSpec(max_seq_len=LENGTH))
    slot = kv.allocate()
    small_models.feed(target, kv, (slot, TOKENS[:start]))
    for n in (3, 6, 13, 24):
        parents = [rng.randint(max(-1, i - 5), i - 1) for i in range(n)]
        path = path_to(parents, n - 1)
        tokens = [rng.randrange(VOCAB) for _ in range(n)]

        chain = small_models.feed(target, kv, (slot, [tokens[i] for i in path]))[0]
        after = small_models.feed(target, kv, (slot, TOKENS[:3]))[0]
        kv.truncate_to(slot, start)

        tree = small_models.feed(target, kv, (slot, tokens), parents=parents)[0]
        assert small_models.identical(tree[path], chain)
        kv.keep_path(slot, start, path)
        assert small_models.identical(small_models.feed(target, kv, (slot, TOKENS[:3]))[0], after)

        for ahead in (1, 2, 25):  # tokens before the tree that are read with it
            kv.truncate_to(slot, start - ahead)
            both = small_models.feed(target, kv, (slot, [*TOKENS[start - ahead : start], *tokens]), parents=parents)[0]
            assert small_models.identical(both[ahead:][path], chain)
        kv.truncate_to(slot, start)


def test_over_stale_rows(dims: str, kind: str) -> None:
    """A slot that another sequence filled, and rows of refused drafts, leave no trace."""
    target, wanted = model(dims, kind), reference(dims, kind)
    kv = target.new_cache(CacheSpec(max_seq_len=LENGTH))
    slot = kv.allocate()
    small_models.feed(target, kv, (slot, TOKENS[200:900]))
    kv.free(slot)
    slot = kv.allocate()
    at = 0
    for kept, refused in ((5, 8), (1, 3), (30, 2), (4, 7), (480, 5), (3, 20), (1, 1)):
        draft = [(t + 1) % VOCAB for t in TOKENS[at + kept : at + kept + refused]]
        found = small_models.feed(target, kv, (slot, [*TOKENS[at : at + kept], *draft]))[0]
        assert small_models.identical(found[:kept], wanted[at : at + kept])
        at += kept
        kv.truncate_to(slot, at)


@pytest.mark.parametrize("in_features", [100, 576, 1536, 2048, 5632])
@pytest.mark.parametrize("biased", [False, True], ids=["", "bias"])
def test_linear_layers(in_features: int, kind: str, biased: bool) -> None:
    """Every row of 1 to 64, at the widths of real models."""
    weight = randn(192, in_features, seed=in_features)
    bias = randn(192, seed=in_features + 1) if biased else None
    layer = pack_array(weight, cast(Target, small_models.DTYPES.get(kind, "bfloat16")), bias=bias)
    x = randn(64, in_features, seed=in_features + 2)
    whole = layer(x)
    for n in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63):
        for at in {0, 64 - n, (64 - n) // 2}:
            assert small_models.identical(layer(x[at : at + n]), whole[at : at + n])
