"""Blocks: shared by those that begin alike, copied before they are written to, taken back least recently used first."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.cache import CacheSpec, KVCache, make_cache
from outrider.errors import CapacityError


def cache(tokens: int = 64, slots: int = 4) -> KVCache:
    spec = CacheSpec(slots=slots, max_seq_len=32, kind="paged", tokens=tokens, block_size=4)
    return make_cache(spec, layers=1, kv_heads=1, head_dim=1, dtype="float32")


def append(kv: KVCache, slot: int, tokens: list[int]) -> None:
    start = kv.length(slot)
    kv.extend(slot, len(tokens))
    rows = np.array(tokens, np.float32)[:, None, None]
    kv.write(0, slot, start, rows, -rows)


def held(kv: KVCache, slot: int) -> list[int]:
    k, v = kv.read(0, slot, kv.length(slot))
    assert np.array_equal(k, -v)
    return [int(x) for x in k.flatten()]


TEXT = [11, 12, 13, 14, 15, 16, 17, 18, 19]


def test_a_prefix_is_found_in_whole_blocks_but_never_the_last_token() -> None:
    kv = cache()
    first = kv.allocate()
    append(kv, first, TEXT)
    kv.publish_prefix(first, TEXT)
    assert held(kv, kv.allocate(TEXT)) == TEXT[:8]
    assert held(kv, kv.allocate(TEXT[:8])) == TEXT[:4]  # the logits of token 8 are due
    assert held(kv, kv.allocate([11, 12, 13, 99, *TEXT[4:]])) == []
    kv.check()


def test_a_block_is_found_as_soon_as_it_is_full() -> None:
    kv = cache()
    first = kv.allocate()
    for end in (6, 8):  # published while its second block is half full, and then again
        append(kv, first, TEXT[kv.length(first) : end])
        kv.publish_prefix(first, TEXT[:end])
    assert held(kv, kv.allocate(TEXT)) == TEXT[:8]
    kv.check()


def test_a_shared_block_is_copied_before_it_is_written_to() -> None:
    kv = cache()
    first = kv.allocate()
    append(kv, first, TEXT)
    kv.publish_prefix(first, TEXT)
    second = kv.allocate(TEXT)
    kv.truncate_to(second, 6)  # back into a block that others may be looking at
    append(kv, second, [96, 97, 98])
    assert held(kv, second) == [*TEXT[:6], 96, 97, 98]
    assert held(kv, first) == TEXT
    assert held(kv, kv.allocate(TEXT)) == TEXT[:8]
    kv.check()


def test_a_published_block_is_copied_also_by_its_only_user() -> None:
    kv = cache()
    first = kv.allocate()
    append(kv, first, TEXT)
    kv.publish_prefix(first, TEXT)
    kv.truncate_to(first, 2)
    append(kv, first, [99])
    assert held(kv, first) == [11, 12, 99]
    assert held(kv, kv.allocate(TEXT)) == TEXT[:8]
    kv.check()


def test_the_least_recently_used_go_first() -> None:
    kv = cache(tokens=16)  # four blocks
    texts = {name: [ord(name)] * 5 for name in "abc"}
    for name in "ab":
        slot = kv.allocate()
        append(kv, slot, texts[name])
        kv.publish_prefix(slot, texts[name])
        kv.free(slot)
    kv.free(kv.allocate(texts["a"]))  # used again, so that b is the older one
    slot = kv.allocate()
    append(kv, slot, [1] * 12)  # takes the two free blocks and one cached
    assert held(kv, kv.allocate(texts["a"])) == texts["a"][:4]
    assert held(kv, kv.allocate(texts["b"])) == []
    kv.check()


def test_salts_keep_blocks_apart() -> None:
    kv = cache()
    first = kv.allocate((), "one")
    append(kv, first, TEXT)
    kv.publish_prefix(first, TEXT, "one")
    assert held(kv, kv.allocate(TEXT, "two")) == []
    assert held(kv, kv.allocate(TEXT, "one")) == TEXT[:8]


def test_no_blocks_left_is_an_error_that_takes_nothing() -> None:
    kv = cache(tokens=8)
    slot = kv.allocate()
    append(kv, slot, [1] * 5)
    assert not kv.can_extend(slot, 4)
    with pytest.raises(CapacityError, match="1 more cache blocks are needed, but only 0 are left"):
        kv.extend(slot, 4)
    assert kv.length(slot) == 5
    kv.check()


def test_an_accepted_path_moves_between_blocks_that_do_not_lie_side_by_side() -> None:
    kv = cache()
    first, other = kv.allocate(), kv.allocate()
    append(kv, first, [1, 2])
    append(kv, other, [91, 92, 93, 94, 95])  # takes the blocks behind the first one's
    append(kv, first, [3, 4, 5, 6, 7, 8])  # a tree, half of it in the first one's second block
    kv.keep_path(first, 2, [0, 3, 5])
    assert held(kv, first) == [1, 2, 3, 6, 8]
    assert held(kv, other) == [91, 92, 93, 94, 95]
    kv.check()
