"""Prefixes found again: never a row of another text or another salt, never the last token, and as many as there are."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence

import numpy as np
import pytest

from outrider.cache import CacheSpec, KVCache, make_cache
from outrider.errors import CapacityError

LENGTH = 32
KINDS = ("contiguous", "paged")
TEXT = [11, 12, 13, 14, 15, 16, 17, 18, 19]


def cache(kind: str, *, slots: int = 3, reuse: bool = True, tokens: int | None = None) -> KVCache:
    paged = {"block_size": 4, "tokens": tokens} if kind == "paged" else {}
    spec = CacheSpec(slots=slots, max_seq_len=LENGTH, kind=kind, prefix_reuse=reuse, **paged)  # type: ignore[arg-type]
    return make_cache(spec, layers=1, kv_heads=1, head_dim=1, dtype="float32")


def row(tokens: Sequence[int], salt: str) -> float:
    """What a model would write for the last of these tokens: it depends on all before it, and on the salt."""
    return float(zlib.crc32(repr((salt, list(tokens))).encode()) % (1 << 24))


def append(kv: KVCache, slot: int, tokens: Sequence[int], salt: str = "") -> None:
    """Feed the tokens beyond those that the slot holds."""
    start = kv.length(slot)
    kv.extend(slot, len(tokens) - start)
    new = [row(tokens[: i + 1], salt) for i in range(start, len(tokens))]
    rows = np.array(new, np.float32)[:, None, None]
    kv.write(0, slot, start, rows, -rows)


def check(kv: KVCache, slot: int, tokens: Sequence[int], salt: str = "") -> None:
    k, v = kv.read(0, slot, kv.length(slot))
    assert k.flatten().tolist() == [row(tokens[: i + 1], salt) for i in range(kv.length(slot))]
    assert np.array_equal(k, -v)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_any_traffic_finds_only_its_own(kind: str, seed: int) -> None:
    rng, kv = random.Random(seed), cache(kind, tokens=48)
    held: dict[int, tuple[list[int], str]] = {}
    verified: dict[int, int] = {}  # tokens of each slot that are no draft any more
    texts: list[list[int]] = [[1, 65537, 1]]
    found = 0
    for _ in range(600):
        if held and (len(held) == 3 or rng.random() < 0.7):
            slot = rng.choice(list(held))
            tokens, salt = held[slot]
            action = rng.randrange(5)
            if action == 0:
                kv.free(slot)
                del held[slot]
            elif action == 1:  # a draft is refused
                kv.truncate_to(slot, rng.randint(verified[slot], len(tokens)))
                del tokens[kv.length(slot) :]
            elif action == 2:
                kv.publish_prefix(slot, tokens, salt)
                verified[slot] = len(tokens)
            else:
                tokens += rng.choices((1, 65537, 2), k=rng.randint(1, 6))  # equal in their low 16 bits
                del tokens[LENGTH:]
                if kv.can_extend(slot, len(tokens) - kv.length(slot)):
                    append(kv, slot, tokens, salt)
                    texts.append(list(tokens))
                else:
                    del tokens[kv.length(slot) :]
        else:
            text, salt = [*rng.choice(texts[-6:]), rng.choice((1, 65537, 2))], rng.choice(("", "other"))
            slot = kv.allocate(text, salt)
            assert kv.length(slot) < len(text)  # the logits after the last token are due
            found += kv.length(slot) > 0
            held[slot], verified[slot] = (text[: kv.length(slot)], salt), kv.length(slot)
        for slot, (tokens, salt) in held.items():
            check(kv, slot, tokens, salt)
        kv.check()
    assert found > 5


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_was_sealed_bit_by_bit_is_found(kind: str) -> None:
    kv = cache(kind)
    slot, tokens = kv.allocate(), list[int]()
    for token in TEXT:
        tokens.append(token)
        append(kv, slot, tokens)
        kv.publish_prefix(slot, tokens)
    kv.free(slot)
    tokens.clear()  # the caller's list is the caller's
    again = kv.allocate(TEXT)
    assert kv.length(again) == 8
    check(kv, again, TEXT)


@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_after_a_roll_back_is_found(kind: str) -> None:
    kv = cache(kind)
    slot = kv.allocate()
    append(kv, slot, TEXT)
    kv.publish_prefix(slot, TEXT)
    kv.truncate_to(slot, 4)
    other = [*TEXT[:4], 95, 96, 97, 98]
    append(kv, slot, other)
    kv.publish_prefix(slot, other)
    kv.free(slot)
    again = kv.allocate([*other, 1])
    assert kv.length(again) == 8
    check(kv, again, other)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_found_where_reuse_is_off(kind: str) -> None:
    kv = cache(kind, reuse=False)
    slot = kv.allocate()
    append(kv, slot, TEXT)
    kv.publish_prefix(slot, TEXT)
    kv.free(slot)
    assert kv.length(kv.allocate(TEXT)) == 0


def test_a_scrubbed_slot_is_not_found() -> None:
    kv = cache("contiguous")
    slot = kv.allocate()
    append(kv, slot, TEXT)
    kv.publish_prefix(slot, TEXT)
    kv.zero(slot)
    kv.free(slot)
    assert kv.length(kv.allocate(TEXT)) == 0


def test_scrubbing_leaves_what_others_share() -> None:
    kv = cache("paged")
    first = kv.allocate()
    append(kv, first, TEXT)
    kv.publish_prefix(first, TEXT)
    second = kv.allocate(TEXT)
    assert kv.length(second) == 8
    kv.zero(second)
    check(kv, first, TEXT)


def test_the_beginning_of_a_prefix_is_kept_longest() -> None:
    kv = cache("paged", tokens=16)  # four blocks, of which the text takes three
    slot = kv.allocate()
    append(kv, slot, TEXT)
    kv.publish_prefix(slot, TEXT)
    kv.free(slot)
    other = kv.allocate([9, 9])
    append(kv, other, [9] * 9)  # three blocks: two that hold nothing, and one of the text
    assert kv.length(kv.allocate(TEXT)) == 4


def test_rows_beyond_the_end_are_nobody_s_after_a_roll_back() -> None:
    kv = cache("paged", tokens=16)
    first, second = kv.allocate(), kv.allocate()
    append(kv, first, TEXT[:8])
    kv.read(0, first, 8)
    kv.truncate_to(first, 4)
    append(kv, second, TEXT)  # takes the block that was given back
    assert not kv.read(0, first, 8)[0][4:].any()


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_row_can_be_used_and_no_other(kind: str) -> None:
    kv = cache(kind)
    slot = kv.allocate()
    assert kv.can_extend(slot, LENGTH)
    assert not kv.can_extend(slot, LENGTH + 1)
    append(kv, slot, [1] * LENGTH)
    assert not kv.can_extend(slot, 1)
    with pytest.raises(CapacityError, match=f"{LENGTH + 1} tokens"):
        kv.extend(slot, 1)
    check(kv, slot, [1] * LENGTH)


def said(kv: KVCache, tokens: Sequence[int]) -> int:
    """A sequence that comes and goes; the rows that it found."""
    slot = kv.allocate(tokens)
    found = kv.length(slot)
    append(kv, slot, tokens)
    check(kv, slot, tokens)
    kv.publish_prefix(slot, tokens)
    kv.free(slot)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_another_conversation_that_begins_alike_leaves_the_first_its_rows(kind: str) -> None:
    """Two agents with one system prompt, in turns."""
    kv, system = cache(kind), list(range(100, 108))
    one, two = [*system, 1, 1, 1, 1, 1], [*system, 2, 2, 2, 2, 2]
    assert said(kv, one) == 0
    assert said(kv, two) == 8
    assert said(kv, [*one, 3, 3, 3, 3]) >= 12
    assert said(kv, [*two, 3, 3, 3, 3]) >= 12


def test_rows_are_copied_from_a_sequence_that_runs() -> None:
    kv = cache("contiguous")
    running = kv.allocate()
    append(kv, running, TEXT)
    kv.publish_prefix(running, TEXT)
    slot = kv.allocate([*TEXT[:6], 99, 99])
    assert kv.length(slot) == 6
    append(kv, slot, [*TEXT[:6], 99, 99])
    append(kv, running, [*TEXT, 7])
    check(kv, slot, [*TEXT[:6], 99, 99])
    check(kv, running, [*TEXT, 7])


def test_a_running_sequence_s_rows_are_offered_as_far_as_they_still_are() -> None:
    kv = cache("contiguous")
    running = kv.allocate()
    append(kv, running, TEXT)
    kv.publish_prefix(running, TEXT)
    kv.truncate_to(running, 3)
    append(kv, running, [*TEXT[:3], 50, 50, 50, 50, 50])
    slot = kv.allocate([*TEXT, 99])
    assert kv.length(slot) == 3
    check(kv, slot, TEXT)


def test_a_text_that_goes_on_or_is_changed_at_its_end_stays_where_it_is() -> None:
    kv = cache("contiguous")
    first = kv.allocate()
    append(kv, first, list(range(20)))
    kv.publish_prefix(first, list(range(20)))
    kv.free(first)
    for tokens in ([*range(20), 99], [*range(19), 99, 99]):
        assert kv.allocate(tokens) == first
        append(kv, first, tokens)
        kv.publish_prefix(first, tokens)
        kv.free(first)
