"""What every key-value cache must do, checked against a model of it in plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from outrider.cache.contiguous import ContiguousCache
from outrider.cache.paged import PagedCache
from outrider.cache.pool import DType, RowShape
from outrider.cache.protocol import CacheSpec, KVCache
from outrider.errors import CapacityError
from outrider.verify.tree import path_to
from tests import small_models
from tests.arrays import Floats, floats

LAYERS, SLOTS, LENGTH = 2, 3, 600  # two blocks of rows per slot, the last one not full
MakeCache = Callable[[], KVCache]


@dataclass(frozen=True)
class Kind:
    make: MakeCache
    free: Callable[[Iterable[int]], int]
    """Tokens still free when sequences of these lengths are held."""
    numbered: bool  # has a fixed number of slots


def contiguous(dtype: DType = "float32") -> KVCache:
    shape = RowShape(layers=LAYERS, kv_heads=2, head_dim=3, dtype=dtype)
    return ContiguousCache(CacheSpec(slots=SLOTS, max_seq_len=LENGTH), shape)


def paged(block: int, dtype: DType = "float32") -> KVCache:
    tokens = SLOTS * -(-LENGTH // block) * block
    spec = CacheSpec(slots=SLOTS, max_seq_len=LENGTH, kind="paged", tokens=tokens, block_size=block)
    return PagedCache(spec, RowShape(layers=LAYERS, kv_heads=2, head_dim=3, dtype=dtype))


def paged_free(lengths: Iterable[int], block: int) -> int:
    return (SLOTS * -(-LENGTH // block) - sum(-(-n // block) for n in lengths)) * block


CACHES: dict[str, Kind] = {
    "contiguous": Kind(contiguous, lambda lengths: SLOTS * LENGTH - sum(lengths), numbered=True),
    "paged, 16": Kind(partial(paged, 16), partial(paged_free, block=16), numbered=False),
    "contiguous, torch": Kind(
        partial(contiguous, torch.float32), lambda lengths: SLOTS * LENGTH - sum(lengths), numbered=True
    ),
    "paged, 16, torch": Kind(partial(paged, 16, torch.float32), partial(paged_free, block=16), numbered=False),
    "contiguous, int8": Kind(
        partial(contiguous, torch.int8), lambda lengths: SLOTS * LENGTH - sum(lengths), numbered=True
    ),
    "paged, 16, int8": Kind(partial(paged, 16, torch.int8), partial(paged_free, block=16), numbered=False),
    "paged, 1": Kind(partial(paged, 1), partial(paged_free, block=1), numbered=False),
}


@pytest.fixture(params=CACHES)
def make(request: pytest.FixtureRequest) -> MakeCache:
    return CACHES[request.param].make


def rows(tags: list[int], layer: int) -> tuple[Floats, Floats]:
    """Keys and values [n, 2, 3] that no other tag or layer has, not even after rounding to 8 bits."""
    k = floats(tags)[:, None, None] * 100 + np.arange(6, dtype=np.float32).reshape(2, 3) + layer * 10
    return k, -3 * k


def held(cache: KVCache, *given: Floats) -> list[Any]:
    """Arrays of the kind that the cache holds."""
    return list(given) if isinstance(cache.pool.dtype, str) else list(map(torch.from_numpy, given))


def append(cache: KVCache, slot: int, tags: list[int]) -> None:
    start = cache.length(slot)
    cache.extend(slot, len(tags))
    for layer in range(LAYERS):
        cache.write(layer, slot, start, *held(cache, *rows(tags, layer)))


def holds(cache: KVCache, slot: int, tags: list[int], read: int | None = None) -> bool:
    """Whether the slot holds exactly ``tags``, in every layer, and finite filler after them."""
    if cache.length(slot) != len(tags):
        return False
    for layer in range(LAYERS):
        for found, wanted in zip(
            cache.read(layer, slot, len(tags) if read is None else read), rows(tags, layer), strict=True
        ):
            found = np.asarray(found)
            if not as_stored(cache, found[: len(tags)], wanted) or not np.isfinite(found).all():
                return False
    return True


def as_stored(cache: KVCache, found: Floats, wanted: Floats) -> bool:
    """Whether these are the numbers that were written: in 8 bits, to half a step of each head's scale."""
    if not cache.pool.k_scales:
        return np.array_equal(found, wanted)
    step = np.abs(wanted).max(-1, keepdims=True) / 127
    return bool((np.abs(found - wanted) <= 0.5001 * step).all())


class AgainstAModel(RuleBasedStateMachine):
    """Random use of a cache; ``held`` says what each slot should hold."""

    kind: Kind
    checks = 0  # of all runs
    slots = Bundle("slots")

    @initialize()
    def begin(self) -> None:
        self.cache = self.kind.make()
        self.held: dict[int, list[int]] = {}
        self.next = 1

    def tags(self, n: int) -> list[int]:
        self.next += n
        return list(range(self.next - n, self.next))

    @rule(target=slots)
    @precondition(lambda self: len(self.held) < SLOTS)
    def allocate(self) -> int:
        slot = self.cache.allocate()
        assert slot not in self.held
        self.held[slot] = []
        return slot

    @rule()
    @precondition(lambda self: self.kind.numbered and len(self.held) == SLOTS)
    def allocate_too_many(self) -> None:
        with pytest.raises(CapacityError, match=str(SLOTS)):
            self.cache.allocate()

    @rule(slot=slots, n=st.one_of(st.integers(1, 9), st.integers(1, 700)))
    def append(self, slot: int, n: int) -> None:
        if len(self.held[slot]) + n > LENGTH:
            with pytest.raises(CapacityError, match=f"{len(self.held[slot]) + n} tokens.*{LENGTH}"):
                self.cache.extend(slot, n)
            return
        tags = self.tags(n)
        append(self.cache, slot, tags)
        self.held[slot] += tags

    @rule(slot=slots, data=st.data())
    def truncate(self, slot: int, data: st.DataObject) -> None:
        length = data.draw(st.integers(0, len(self.held[slot])))
        self.cache.truncate_to(slot, length)
        del self.held[slot][length:]

    @rule(slot=slots, over=st.sampled_from([-1, None]))
    def truncate_wrongly(self, slot: int, over: int | None) -> None:
        length = len(self.held[slot]) + 1 if over is None else over
        with pytest.raises(ValueError, match=f"{len(self.held[slot])} rows to {length}"):
            self.cache.truncate_to(slot, length)

    @rule(slot=slots, data=st.data())
    def keep_path(self, slot: int, data: st.DataObject) -> None:
        """Score a random tree, keep a random path of it."""
        base = len(self.held[slot])
        n = data.draw(st.integers(0, min(8, LENGTH - base)))
        parents = [data.draw(st.integers(-1, i - 1)) for i in range(n)]
        path = path_to(parents, data.draw(st.integers(-1, n - 1)))
        tags = self.tags(n)
        append(self.cache, slot, tags)
        self.cache.keep_path(slot, base, path)
        self.held[slot] += [tags[node] for node in path]

    @rule(slot=consumes(slots), zero=st.booleans())
    def free(self, slot: int, zero: bool) -> None:
        if zero:
            self.cache.zero(slot)
        self.cache.free(slot)
        del self.held[slot]

    @invariant()
    def holds_what_it_should(self) -> None:
        type(self).checks += 1
        self.cache.check()
        for slot, tags in self.held.items():
            assert holds(self.cache, slot, tags)
        assert self.cache.free_tokens() == self.kind.free(map(len, self.held.values()))


@pytest.mark.parametrize("examples", [15, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CACHES)
def test_random_use(name: str, examples: int) -> None:
    class Machine(AgainstAModel):
        kind = CACHES[name]

    limits = settings(max_examples=examples, stateful_step_count=25, deadline=None, derandomize=True)
    run_state_machine_as_test(Machine, settings=limits)
    assert Machine.checks > examples  # after every step of every run


def test_the_table_says_where_the_rows_lie(make: MakeCache) -> None:
    """And beyond them, what may be read without harm."""
    cache = make()
    first, second = cache.allocate(), cache.allocate()
    for tags in ([1, 2], [3] * 20, [4] * 500):  # in turns, so that blocks of both are mixed
        append(cache, first, tags)
        append(cache, second, tags[::-1])
    sick = cache.allocate()
    append(cache, sick, [9])
    for rows in cache.pool.arrays:
        if "int8" not in str(rows.dtype):
            rows[cache.pool.spare] = math.nan
            rows[_found(cache, sick, 1)] = math.nan
    for slot in (first, second):
        for layer in range(LAYERS):
            beyond = cache.pool.read(layer, cache.pool.index(_found(cache, slot, 600)))
            held = cache.read(layer, slot, 522)
            assert held
            for whole, read in zip(beyond, held, strict=True):
                assert np.array_equal(whole[:522], read)
                assert np.isfinite(np.asarray(whole)).all()


def _found(cache: KVCache, slot: int, rows: int) -> list[int]:
    table, pool = cache.table(slot, rows), cache.pool
    assert len(table) == -(-rows // pool.block)
    return [min(table[i // pool.block] * pool.block + i % pool.block, pool.filler) for i in range(rows)]


def test_filler_is_finite_from_the_start(make: MakeCache) -> None:
    """A run reads whole blocks: rows never written must not be NaN, which would survive a mask."""
    cache = make()
    slot = cache.allocate()
    append(cache, slot, [1, 2])
    assert holds(cache, slot, [1, 2], read=512)


def test_filler_is_nobody_else_s(make: MakeCache) -> None:
    """Rows past the end may be anything finite: never those of a sequence whose model has broken down."""
    cache = make()
    sick, well = cache.allocate(), cache.allocate()
    append(cache, sick, [1])
    for layer in range(LAYERS):
        cache.write(
            layer,
            sick,
            0,
            *held(cache, np.full((1, 2, 3), math.nan, np.float32), np.full((1, 2, 3), math.nan, np.float32)),
        )
    append(cache, well, [2, 3])
    assert holds(cache, well, [2, 3], read=512)


def test_zero_leaves_nothing_behind(make: MakeCache) -> None:
    cache = make()
    slots = [cache.allocate() for _ in range(SLOTS)]
    for slot in slots:
        append(cache, slot, [7] * 5)
    cache.extend(slots[1], 1)
    cache.write(
        0, slots[1], 5, *held(cache, np.full((1, 2, 3), math.nan, np.float32), np.full((1, 2, 3), math.inf, np.float32))
    )
    cache.truncate_to(slots[1], 2)
    cache.zero(slots[1])
    cache.free(slots[1])
    again = cache.allocate()
    append(cache, again, [9])
    assert holds(cache, again, [9], read=LENGTH)
    assert holds(cache, slots[0], [7] * 5)
    assert holds(cache, slots[2], [7] * 5)


def test_keep_path_of_the_example(make: MakeCache) -> None:
    cache = make()
    slot = cache.allocate()
    append(cache, slot, [1, 2, 23, 24, 25])  # a b | w x y z
    cache.keep_path(slot, 2, (0, 2))
    assert holds(cache, slot, [1, 2, 23, 25])


def test_a_slot_freed_twice_is_an_error(make: MakeCache) -> None:
    cache = make()
    slot = cache.allocate()
    cache.free(slot)
    with pytest.raises(Exception, match=str(slot)):
        cache.free(slot)
    cache.check()


def test_check_names_all_three_numbers() -> None:
    shape = RowShape(layers=1, kv_heads=1, head_dim=1, dtype="float32")
    cache = ContiguousCache(CacheSpec(slots=3, max_seq_len=8), shape)
    cache.allocate()
    cache._free.pop()
    with pytest.raises(AssertionError, match=r"1 free \+ 1 used != 3"):
        cache.check()


def test_no_memory_says_what_to_change() -> None:
    shape = RowShape(layers=1, kv_heads=64, head_dim=256, dtype="float32")
    with pytest.raises(CapacityError, match="max_seq_len"):
        ContiguousCache(CacheSpec(max_seq_len=2**40), shape)


def test_rollback_after_a_refusal(make: MakeCache) -> None:
    """Ten tokens, five drafted, the third refused: the next run reads the ten and the first two drafts."""
    cache = make()
    slot = cache.allocate()
    prefix, drafts = list(range(10)), [50, 51, 52, 53, 54]
    append(cache, slot, prefix)
    append(cache, slot, drafts)
    cache.keep_path(slot, 10, (0, 1))
    assert holds(cache, slot, [*prefix, 50, 51])
    append(cache, slot, [60])
    assert holds(cache, slot, [*prefix, 50, 51, 60], read=512)


@pytest.mark.parametrize("kind", [*small_models.DTYPES, "kv8"])
def test_rollback_after_a_refusal_on_a_model(kind: str) -> None:
    model = small_models.llama(kind)
    prefix, drafts, after = small_models.ids(10), small_models.ids(5, seed=2), small_models.ids(3, seed=3)

    plain = model.new_cache(CacheSpec(max_seq_len=128))
    slot = plain.allocate()
    small_models.feed(model, plain, (slot, [*prefix, *drafts[:2]]))
    expected = small_models.feed(model, plain, (slot, after))[0]

    cache = model.new_cache(CacheSpec(max_seq_len=128))
    assert slot == cache.allocate()
    small_models.feed(model, cache, (slot, prefix))
    small_models.feed(model, cache, (slot, drafts))
    cache.keep_path(slot, 10, (0, 1))
    found = small_models.feed(model, cache, (slot, after))[0]
    assert small_models.identical(found, expected)
    for layer in range(model.config.num_layers):
        for ours, theirs in zip(cache.read(layer, slot, 15), plain.read(layer, slot, 15), strict=True):
            assert np.array_equal(ours, theirs)
