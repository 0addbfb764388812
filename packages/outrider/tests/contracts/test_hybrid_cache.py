"""States of a cache: places, entries and copies, without a model."""

from __future__ import annotations

import random

import numpy as np
import pytest

from outrider.cache import CacheSpec, HybridCache, StateShape, make_cache
from outrider.cache.states import RecurrentStates
from outrider.errors import CapacityError
from outrider.models.batch import Span

SHAPE = StateShape(layers=2, key_heads=1, value_heads=2, key_dim=3, value_dim=4, convolution=4)
TEXT = [11, 12, 13, 14, 15, 16, 17, 18, 19]


def hybrid(kind: str = "contiguous", **options: object) -> HybridCache:
    spec = CacheSpec(**{"slots": 2, "max_seq_len": 32, "kind": kind, "block_size": 4, "pending": 6} | options)  # type: ignore[arg-type]
    cache = make_cache(spec, layers=1, kv_heads=1, head_dim=2, dtype="float32", states=SHAPE)
    assert isinstance(cache, HybridCache)
    return cache


def fill(cache: HybridCache, slot: int, count: int, settled: int, seed: int = 0) -> None:
    """Rows, state and entries of random numbers, as a pass leaves them."""
    rng, states, at = np.random.default_rng(seed), cache.states, cache.states.row(slot)
    cache.extend(slot, count)
    rows = rng.normal(size=(count, 1, 2)).astype(np.float32)
    cache.write(0, slot, 0, rows, -rows)
    for arrays in (states.state, states.inputs, states.updates):
        for array in arrays:
            array[at] = rng.normal(size=array[at].shape)
    states.passed([Span(slot, 0, count, kept=settled)])


def held(states: RecurrentStates, slot: int, pending: int) -> list[np.ndarray]:
    at = states.row(slot)
    return [
        *(array[at].copy() for array in states.state),
        *(array[at, : 3 + pending].copy() for array in states.inputs),
        *(array[at, :pending].copy() for array in states.updates),
    ]


def test_sizes_are_those_of_the_arrays() -> None:
    cache = hybrid(slots=3)
    arrays = [*cache.states.state, *cache.states.inputs, *cache.states.updates]
    assert sum(array.nbytes for array in arrays) == 3 * SHAPE.sequence_bytes(6)
    assert [array.shape for array in arrays[::2]] == [(3, 2, 3, 4), (3, 9, 14), (3, 6, 13)]


@pytest.mark.parametrize("path", [(), (0,), (0, 1), (2,), (1, 3), (0, 2, 3)])
def test_an_accepted_path_moves_entries_and_inputs(path: tuple[int, ...]) -> None:
    cache = hybrid()
    slot = cache.allocate()
    fill(cache, slot, 9, settled=4)  # entries of the rows 4 to 8
    before = held(cache.states, slot, 5)
    cache.keep_path(slot, 5, path)
    after, entries = held(cache.states, slot, 1 + len(path)), [0, *(1 + node for node in path)]
    assert cache.length(slot) == 5 + len(path)
    for i in range(2):
        assert np.array_equal(after[i], before[i])
        assert np.array_equal(after[2 + i], before[2 + i][[0, 1, 2, *(3 + entry for entry in entries)]])
        assert np.array_equal(after[4 + i], before[4 + i][entries])
    cache.check()


def test_a_path_cannot_begin_within_the_state() -> None:
    cache = hybrid()
    slot = cache.allocate()
    fill(cache, slot, 9, settled=6)
    with pytest.raises(ValueError, match="the recurrent state holds 6 rows"):
        cache.keep_path(slot, 5, (1,))
    assert cache.length(slot) == 9


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
@pytest.mark.parametrize(("count", "settled"), [(n, s) for n in range(1, 9) for s in range(max(1, n - 6), n + 1)])
def test_a_copy_gives_back_state_entries_and_rows(kind: str, count: int, settled: int) -> None:
    cache = hybrid(kind)
    slot = cache.allocate()
    fill(cache, slot, count, settled)
    state, (keys, values) = held(cache.states, slot, count - settled), cache.read(0, slot, count)
    cache.save_state(slot, TEXT[:count])
    cache.publish_prefix(slot, TEXT[:count])
    cache.free(slot)
    assert settled <= count
    for shared in range(settled, count + 1):
        again = cache.allocate([*TEXT[:shared], 99, 99, 99])
        assert cache.length(again) == shared
        assert cache.states.settled(again) == settled
        found = held(cache.states, again, shared - settled)
        for i, (new, old) in enumerate(zip(found, state, strict=True)):
            assert np.array_equal(new, old[: len(new)]), i
        k, v = cache.read(0, again, shared)
        assert np.array_equal(k, keys[:shared])
        assert np.array_equal(v, values[:shared])
        cache.check()
        cache.publish_prefix(again, TEXT[:shared])
        cache.free(again)
        if kind == "contiguous":
            break  # the slot has fewer rows from now on


def test_rows_before_the_state_of_a_copy_are_not_reused() -> None:
    for kind in ("contiguous", "paged"):
        cache = hybrid(kind)
        slot = cache.allocate()
        fill(cache, slot, 9, 9)
        cache.publish_prefix(slot, TEXT)
        cache.save_state(slot, TEXT)
        cache.free(slot)
        assert cache.length(cache.allocate([*TEXT[:8], 99])) == 0
        assert cache.length(cache.allocate([*TEXT, 99])) == 9


def test_the_last_token_is_never_found() -> None:
    cache = hybrid("paged")
    slot = cache.allocate()
    fill(cache, slot, 8, 6)
    cache.publish_prefix(slot, TEXT[:8])
    cache.save_state(slot, TEXT[:8])
    cache.free(slot)
    assert cache.length(cache.allocate(TEXT[:8])) == 7
    assert cache.length(cache.allocate(TEXT[:6])) == 0


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_a_copy_serves_its_own_salt(kind: str) -> None:
    """Rows of the other salt are there: the copy alone must tell."""
    cache = hybrid(kind, slots=4)
    for salt, saved in (("one", True), ("two", False)):
        slot = cache.allocate([])
        fill(cache, slot, 8, 8)
        cache.publish_prefix(slot, TEXT[:8], salt)
        if saved:
            cache.save_state(slot, TEXT[:8], salt)
        cache.free(slot)
    assert cache.length(cache.allocate(TEXT, "two")) == 0
    assert cache.length(cache.allocate(TEXT, "one")) == 8


def test_a_state_that_is_not_finite_is_not_copied() -> None:
    for number, array in ((np.nan, "state"), (np.inf, "inputs"), (-np.inf, "updates")):
        cache = hybrid()
        slot = cache.allocate()
        fill(cache, slot, 9, 8)
        arrays: list[np.ndarray] = getattr(cache.states, array)
        arrays[1][cache.states.row(slot)].reshape(-1)[0] = number
        cache.save_state(slot, TEXT)
        assert len(cache.checkpoints) == 0


def test_a_longer_tail_replaces_a_copy_of_the_same_state() -> None:
    cache = hybrid("paged")
    slot = cache.allocate()
    fill(cache, slot, 9, 5)
    for count in (6, 9, 7):
        cache.save_state(slot, TEXT[:count])
    cache.publish_prefix(slot, TEXT)
    cache.free(slot)
    assert len(cache.checkpoints) == 1
    assert cache.length(cache.allocate([*TEXT, 99])) == 9


def test_without_places_nothing_is_copied() -> None:
    for options in ({"checkpoints": 0}, {"prefix_reuse": False}):
        cache = hybrid(**options)
        slot = cache.allocate()
        fill(cache, slot, 9, 9)
        cache.publish_prefix(slot, TEXT)
        cache.save_state(slot, TEXT)
        cache.free(slot)
        assert cache.length(cache.allocate([*TEXT, 99])) == 0


def test_a_copy_whose_rows_find_no_room_is_not_used() -> None:
    cache = hybrid("paged", tokens=16)
    slot = cache.allocate()
    fill(cache, slot, 6, 6)
    cache.publish_prefix(slot, TEXT[:6])
    cache.save_state(slot, TEXT[:6])
    cache.free(slot)
    other = cache.allocate()
    fill(cache, other, 12, 12)
    again = cache.allocate([*TEXT[:6], 99])  # one block is left, and has the first four rows
    assert cache.length(again) == 0
    cache.check()


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_places_are_conserved(kind: str) -> None:
    cache, rng, slots = hybrid(kind, slots=3, checkpoints=2), random.Random(1), list[int]()
    for seed in range(200):
        if slots and (len(slots) == 3 or rng.random() < 0.5):
            slot = slots.pop(rng.randrange(len(slots)))
            if rng.random() < 0.5 and cache.length(slot):
                text = [rng.randrange(2) for _ in range(cache.length(slot))]
                cache.publish_prefix(slot, text)
                cache.save_state(slot, text)
            cache.free(slot)
        else:
            slot = cache.allocate([rng.randrange(2) for _ in range(rng.randrange(6))])
            slots.append(slot)
            if not cache.length(slot):
                fill(cache, slot, count := rng.randint(1, 8), rng.randint(max(1, count - 6), count), seed)
        cache.check()
        assert len({cache.states.row(slot) for slot in slots}) == len(slots)
        assert len(cache.checkpoints) <= 2


def test_missing_memory_is_named() -> None:
    with pytest.raises(CapacityError, match="no memory for the recurrent states"):
        RecurrentStates(SHAPE, 1 << 50, 4)
