"""Runs in fixed shapes give what runs of any shape give, and touch no row of the cache but their own."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from outrider.cache import CacheSpec, KVCache
from outrider.models.batch import ForwardBatch, ForwardOutput, Span
from outrider.verify.tree import ancestor_mask, depths, path_to
from outrider_torch.cuda_graphs.buckets import Bucket, bucket_for, split_at
from outrider_torch.cuda_graphs.graphs import CudaGraphRunner
from outrider_torch.models.llama import LlamaModel
from tests import small_models
from tests.models.tape import TapeCapture
from tests.pairwise import slow_unless, spread

LENGTH = 600
DIMS: dict[str, dict[str, Any]] = {
    "grouped": {},
    "one key head, norms of q and k": {"num_kv_heads": 1, "num_heads": 3, "head_dim": 16, "qk_norm": True},
    "window": {"sliding_window": 12},
}


def pair(**dims: Any) -> tuple[LlamaModel, LlamaModel, TapeCapture]:
    """The same model twice: as ever, and in fixed shapes, replayed from tapes."""
    plain, fixed = (small_models.torch_llama(max_seq_len=LENGTH, **dims) for _ in range(2))
    capture = TapeCapture()
    fixed._fixed = CudaGraphRunner(fixed._on_grid, fixed.device, capture)
    return plain, fixed, capture


def spec(kind: str, slots: int = 1) -> CacheSpec:
    return CacheSpec(slots=slots, max_seq_len=LENGTH, kind=kind, block_size=24)  # type: ignore[arg-type]


def batch(*spans: tuple[Span, Sequence[int]], seed: int = 0, **more: Any) -> ForwardBatch:
    """Random tokens at the given positions."""
    positions = [p for _, own in spans for p in own]
    tokens = small_models.ids(len(positions), seed=seed)
    given = {"logit_rows": None} | more
    return ForwardBatch(tokens, positions, tuple(span for span, _ in spans), **given)


def chain(slot: int, start: int, count: int) -> tuple[Span, Sequence[int]]:
    return Span(slot, start, count), range(start, start + count)


def agree(a: ForwardOutput, b: ForwardOutput) -> bool:
    def close(x: Tensor | None, y: Tensor | None) -> bool:
        if x is None or y is None:
            return x is y
        return x.shape == y.shape and torch.allclose(x, y, atol=1e-4, rtol=1e-5)

    return close(a.logits, b.logits) and close(a.hidden, b.hidden) and close(a.features, b.features)


class Twin:
    """Both models, with a cache each, told the same."""

    def __init__(self, kind: str, slots: int, **dims: Any) -> None:
        self.plain, self.fixed, self.capture = pair(**dims)
        self.caches = [m.new_cache(spec(kind, slots)) for m in (self.plain, self.fixed)]
        self.slots = [self.caches[0].allocate() for _ in range(slots)]
        assert self.slots == [self.caches[1].allocate() for _ in range(slots)]
        self.greedy = 0

    def length(self, slot: int) -> int:
        return self.caches[0].length(slot)

    def extend(self, slot: int, count: int) -> None:
        for cache in self.caches:
            cache.extend(slot, count)

    def truncate(self, slot: int, length: int) -> None:
        for cache in self.caches:
            cache.truncate_to(slot, length)

    def keep(self, slot: int, base: int, path: Sequence[int]) -> None:
        for cache in self.caches:
            cache.keep_path(slot, base, path)

    def run(self, work: ForwardBatch) -> None:
        a, b = (m.forward(work, cache) for m, cache in zip((self.plain, self.fixed), self.caches, strict=True))
        assert agree(a, b)
        assert torch.equal(a.logits.argmax(-1), b.logits.argmax(-1))
        self.greedy += len(a.logits)
        for cache in self.caches:
            cache.check()


def some_options(rng: random.Random, rows: int) -> dict[str, Any]:
    """What a run may be asked for besides."""
    options: dict[str, Any] = {}
    if rng.random() < 0.5:
        options["logit_rows"] = sorted(rng.sample(range(rows), rng.randint(0, rows)))
    if rng.random() < 0.2:
        options["features"] = rng.choice([(0,), (1,), (0, 2)])
    elif rng.random() < 0.2:
        options["layers"] = 1
    return options


MIXED = list(itertools.product(DIMS, ("contiguous", "paged")))


@pytest.mark.parametrize(("dims", "kind"), slow_unless(MIXED, spread(MIXED, factor=0)))
def test_mixed_batches_agree(kind: str, dims: str) -> None:
    """Chains, trees, trees that grow in a second run, prompts, and every kind of roll-back."""
    rng, twin = random.Random(dims + kind), Twin(kind, 5, **DIMS[dims])
    for step in range(70):
        spans, undo = [], []
        for slot in rng.sample(twin.slots, rng.randint(1, 5)):
            start, count = twin.length(slot), rng.choice([1, 1, 2, 3, 5, 8, 13, 40 if step < 12 else 1])
            if start + 2 * count > LENGTH:
                twin.truncate(slot, start := rng.randint(0, 30))
            parents = [rng.randint(max(-1, i - 3), i - 1) for i in range(count)]
            if rng.random() < 0.5 or count > 20:
                parents = list(range(-1, count - 1))
                spans.append(chain(slot, start, count))
            elif start > 0 and rng.random() < 0.4:  # its first nodes were fed before
                fed = rng.randint(0, count - 1)
                if fed:
                    twin.extend(slot, fed)
                    depth = [start + d for d in depths(parents[:fed])]
                    twin.run(batch((Span(slot, start, fed, ancestor_mask(parents[:fed])), depth), seed=step))
                depth = [start + d for d in depths(parents)][fed:]
                spans.append((Span(slot, start + fed, count - fed, ancestor_mask(parents)[fed:]), depth))
            else:
                ahead = rng.choice([0, 0, 1, 2, 7])  # tokens before the tree that are read with it
                depth = [*range(start, start + ahead), *(start + ahead + d for d in depths(parents))]
                spans.append((Span(slot, start, ahead + count, ancestor_mask(parents)), depth))
                parents = [*range(-1, ahead - 1), *(ahead + parent for parent in parents)]
                count += ahead
            twin.extend(slot, spans[-1][0].count)
            undo.append((slot, start, path_to(parents, rng.randrange(count))))
        twin.run(batch(*spans, seed=1000 + step, **some_options(rng, sum(s.count for s, _ in spans))))
        for slot, start, path in undo:
            twin.keep(slot, start, path)
    assert sum(tape.replays for tape in twin.capture.tapes) > 15
    assert twin.greedy > 300


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_across_a_block_of_keys(kind: str) -> None:
    twin = Twin(kind, 1)
    twin.extend(0, 500)
    twin.run(batch(chain(0, 0, 500)))
    for start in range(500, 520, 2):
        twin.extend(0, 2)
        twin.run(batch(chain(0, start, 2), seed=start))
    assert {bucket.keys for bucket in twin.fixed._fixed.captured(twin.caches[1])} == {512, 1024}  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_only_its_own_rows_are_written_and_the_spare_one_is_never_read(kind: str) -> None:
    _, model, _ = pair()
    cache = model.new_cache(spec(kind, 3))
    slots = [cache.allocate() for _ in range(3)]
    small_models.feed(model, cache, *((slot, small_models.ids(50, seed=slot)) for slot in slots))
    pools = [*cache.pool.k, *cache.pool.v]
    for rows in pools:
        rows[cache.pool.spare] = float("nan")
    before = [rows.clone() for rows in pools]
    for _ in range(3):
        logits = small_models.feed(model, cache, *((slot, small_models.ids(5)) for slot in slots))
        assert not any(bool(np.isnan(part).any()) for part in logits)
        for slot in slots:
            cache.truncate_to(slot, 50)
    own = {row for slot in slots for row in rows_of(cache, slot, 55)[50:]}
    for was, now in zip(before, pools, strict=True):
        changed = (was != now).flatten(1).any(1).nonzero().flatten().tolist()
        assert set(changed) == own | {cache.pool.spare}


def rows_of(cache: KVCache, slot: int, rows: int) -> list[int]:
    """The rows of the pool, once the slot has so many."""
    cache.extend(slot, rows - cache.length(slot))
    table, block = cache.table(slot, rows), cache.pool.block
    return [table[i // block] * block + i % block for i in range(rows)]


def test_bits_do_not_depend_on_what_fills_the_bucket() -> None:
    """The same rows with other company, as long as the bucket is the same."""
    _, model, _ = pair()
    cache = model.new_cache(spec("contiguous", 3))
    slots = [cache.allocate() for _ in range(3)]
    small_models.feed(model, cache, *((slot, small_models.ids(40, seed=slot)) for slot in slots))
    found = []
    for others in (slots[1:], slots[2:], slots[:0:-1]):
        logits = small_models.feed(
            model, cache, (slots[0], small_models.ids(3)), *((slot, small_models.ids(4, seed=slot)) for slot in others)
        )
        found.append(logits[0])
        for slot in slots:
            cache.truncate_to(slot, 40)
    assert len(model._fixed.captured(cache)) == 1  # type: ignore[union-attr]  # three sequences; two were run once
    assert small_models.identical(found[0], found[2])


BASE = Bucket(sequences=1, rows=1, keys=512, width=1, scored=1, block=512)


@pytest.mark.parametrize(
    ("work", "bucket"),
    [
        (batch(chain(0, 0, 1)), BASE),
        (batch(chain(0, 0, 1), layers=1, features=(1,)), Bucket(1, 1, 512, 1, 1, 512, 1, (1,))),
        (batch(chain(0, 7, 5), logit_rows=[3, 4]), Bucket(1, 8, 512, 8, 2, 512)),
        (batch(chain(0, 511, 1), chain(1, 3, 1), chain(2, 3, 1)), Bucket(4, 1, 512, 1, 4, 512)),
        (batch(chain(0, 511, 2)), Bucket(1, 2, 1024, 2, 2, 512)),
        (batch((Span(0, 20, 3, np.ones((3, 11), np.bool_)), range(3))), Bucket(1, 4, 512, 16, 4, 512)),
        (batch(chain(0, 0, 32)), Bucket(1, 32, 512, 32, 32, 512)),
        (batch(chain(0, 0, 33)), Bucket(1, 64, 512, 64, 64, 512)),
        (batch(chain(0, 0, 129)), None),
        (batch(*(chain(i, 0, 1) for i in range(300))), Bucket(512, 1, 512, 1, 512, 512)),
        (batch(*(chain(i, 0, 1) for i in range(1025))), None),
        (batch(*(chain(i, 0, 32) for i in range(65))), None),
        (batch(chain(0, 0, 1), inputs=torch.zeros(1, 48)), None),
    ],
)
def test_which_bucket(work: ForwardBatch, bucket: Bucket | None) -> None:
    cache = small_models.torch_llama(max_seq_len=LENGTH).new_cache(spec("contiguous"))
    assert bucket_for(work, cache) == bucket


def test_long_contexts_of_many_are_not_padded() -> None:
    cache = small_models.torch_llama(max_seq_len=8192).new_cache(CacheSpec(max_seq_len=8192))
    few, many = (batch(*(chain(i, 5000, 1) for i in range(n))) for n in (8, 9))
    assert bucket_for(few, cache) == Bucket(8, 1, 8192, 1, 8, 512)
    assert bucket_for(many, cache) == Bucket(16, 1, 8192, 1, 16, 512)
    copied = 2 * 4 * cache.pool.k[0][0].numel() * 8 * 8192
    assert bucket_for(few, cache, copied) is not None
    assert bucket_for(many, cache, copied) is None


def test_keys_of_hundreds_of_sequences_are_rounded_up_to_blocks() -> None:
    cache = small_models.torch_llama(max_seq_len=8192).new_cache(CacheSpec(max_seq_len=8192))
    few, many = (bucket_for(batch(*(chain(i, 1100, 1) for i in range(n))), cache) for n in (32, 100))
    assert few is not None
    assert many is not None
    assert (few.keys, many.keys) == (2048, 1536)


@pytest.mark.parametrize(
    ("counts", "limit"),
    [
        ([1] * 600, None),  # all alike
        ([1, 200], None),  # small enough as it is
        ([1] * 100 + [20, 30], 1),
        ([5] * 60 + [3] * 40 + [90], 8),
        ([17] * 100 + [32], None),  # nothing gained
    ],
)
def test_sequences_of_few_and_many_rows_run_apart(counts: list[int], limit: int | None) -> None:
    assert split_at(batch(*(chain(i, 0, n) for i, n in enumerate(counts)))) == limit


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_a_prompt_does_not_keep_others_from_their_fixed_shape(kind: str) -> None:
    twin = Twin(kind, 4)
    for slot, count in zip(twin.slots, (5, 9, 140, 7), strict=True):
        twin.extend(slot, count)
    spans = (chain(twin.slots[0], 4, 1), chain(twin.slots[2], 0, 140), chain(twin.slots[1], 6, 3))
    work = batch(*spans, logit_rows=[143, 0, 140, 142], features=(1,))
    found = [m.forward(work, c) for m, c in zip((twin.plain, twin.fixed), twin.caches, strict=True)]
    assert agree(*found)
    assert found[0].logits.shape[0] == 4
    assert twin.fixed._fixed is not None
    assert [(b.sequences, b.rows) for b in twin.fixed._fixed._shapes[twin.caches[1]]] == [(2, 4)]
