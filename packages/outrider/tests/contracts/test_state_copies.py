"""Which copies of recurrent states make room for others."""

from __future__ import annotations

from outrider.cache import HybridCache
from outrider.cache.checkpoints import BOUNDARY, ROOT, WITHIN
from tests.contracts.test_hybrid_cache import TEXT, fill, hybrid


def saved(cache: HybridCache, text: list[int], worth: int = BOUNDARY) -> None:
    """A sequence of ``text`` that ran and left a copy of its state."""
    slot = cache.allocate()
    fill(cache, slot, len(text), len(text))
    cache.publish_prefix(slot, text)
    cache.save_state(slot, text, worth=worth)
    cache.free(slot)


def reused(cache: HybridCache, text: list[int]) -> int:
    slot = cache.allocate([*text, 99])
    found = cache.length(slot)
    cache.free(slot)
    return found


def test_the_copy_behind_a_system_prompt_outlives_those_of_later_turns() -> None:
    cache = hybrid("paged", checkpoints=3)
    saved(cache, TEXT[:4], ROOT)
    for other in range(30, 36):
        saved(cache, [*TEXT[:4], other])
    assert reused(cache, TEXT[:4]) == 4
    assert [reused(cache, [*TEXT[:4], other]) for other in (33, 34, 35)] == [4, 5, 5]


def test_copies_within_a_message_give_way_first_unless_they_were_found() -> None:
    cache = hybrid("paged", checkpoints=3)
    saved(cache, TEXT[:4])
    saved(cache, TEXT[:6], WITHIN)
    saved(cache, TEXT[:8], WITHIN)
    assert reused(cache, TEXT[:6]) == 6
    for other in (30, 31):
        saved(cache, [other] * 4)
    assert (reused(cache, TEXT[:8]), reused(cache, TEXT[:4])) == (6, 0)


def test_copies_behind_system_prompts_take_half_of_the_places() -> None:
    cache = hybrid("paged", checkpoints=4)
    for first in (30, 31, 32, 33):
        saved(cache, [first] * 4, ROOT)
        if first == 32:
            assert reused(cache, [30] * 4) == 4  # it is used: the next is the least recently used
    for other in (40, 41):
        saved(cache, [other] * 4)
    assert [reused(cache, [first] * 4) for first in (30, 31, 32, 33, 40, 41)] == [4, 0, 0, 4, 4, 4]
