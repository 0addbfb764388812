"""Where reading pauses so that recurrent states can be copied."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.cache.checkpoints import BOUNDARY, ROOT, WITHIN
from outrider.engine.read_plan import INTERVAL, SPACING, TAIL, ReadPlan

END, PENDING = 9, 24


def passes(tokens: list[int], start: int = 0, budget: int = 10**6) -> list[tuple[int, int]]:
    """Count and kept rows of each pass that reads ``tokens``."""
    plan, found, at = ReadPlan(tokens, start, {END}, PENDING), [], start
    while at < len(tokens):
        count = plan.chunk(at, min(budget, len(tokens) - at))
        found.append((count, plan.kept(at, count)))
        at += count
    return found


def message(length: int) -> list[int]:
    return [*[1] * (length - 1), END]


def test_a_short_text_is_read_in_one_pass_which_leaves_its_last_token_pending() -> None:
    assert passes([1] * 30) == [(30, 29)]
    assert passes([1]) == [(1, 1)]


def test_what_begins_an_answer_is_pending_behind_the_last_message() -> None:
    assert passes([*message(30), 1, 2, 3]) == [(33, 30)]
    assert passes([*message(30), *[1] * TAIL]) == [(30 + TAIL, 30)]
    assert passes([*message(30), *[1] * (TAIL + 1)]) == [(31 + TAIL, 30 + TAIL)]


def test_reading_pauses_behind_messages_that_are_not_close_to_one_another() -> None:
    text = [*message(100), *message(20), *message(70), *message(90), 1, 2]
    assert passes(text) == [(100, 100), (90, 90), (92, 90)]
    text = [*message(100), *message(SPACING), *message(90), 1, 2]
    assert passes(text) == [(100, 100), (SPACING, SPACING), (92, 90)]


def test_the_last_message_can_be_replaced_however_short_it_is() -> None:
    text = [*message(100), *message(SPACING), *message(5), 1, 2]
    assert passes(text) == [(100, 100), (SPACING, SPACING), (7, 5)]
    text = [*message(100), *message(30), *message(5), 1, 2]
    assert passes(text) == [(100, 100), (30, 30), (7, 5)]


def test_a_long_text_is_copied_at_intervals() -> None:
    assert passes([1] * (2 * INTERVAL + 100)) == [(INTERVAL, INTERVAL)] * 2 + [(100, 99)]
    assert passes([1] * (2 * INTERVAL + 100), start=INTERVAL + 7) == [(INTERVAL - 7, INTERVAL - 7), (100, 99)]


def test_what_was_found_in_the_cache_counts_as_a_copy() -> None:
    text = [*message(100), *message(70), *message(90), 1, 2]
    assert passes(text, start=99) == [(71, 71), (92, 90)]
    assert passes(text, start=130) == [(132, 130)]
    assert passes(text, start=261) == [(1, 1)]


def test_a_small_budget_pauses_at_the_same_copies() -> None:
    text = [*message(100), *message(70), *message(90), 1, 2]
    cut = passes(text, budget=40)
    assert cut == [(40, 40), (40, 40), (20, 20), (40, 40), (30, 30), (40, 40), (40, 40), (12, 10)]
    assert passes([*message(40), 1, 2, 3], budget=41) == [(40, 40), (3, 3)]


@given(tokens=st.lists(st.sampled_from([1, 2, END]), min_size=1, max_size=200), budget=st.integers(1, 90))
def test_all_is_read_once_and_little_is_pending(tokens: list[int], budget: int) -> None:
    found = passes(tokens, budget=budget)
    assert sum(count for count, _ in found) == len(tokens)
    assert all(kept == count for count, kept in found[:-1])
    count, kept = found[-1]
    assert 0 <= count - kept <= TAIL


@pytest.mark.parametrize(("pending", "drafts"), [(24, 24 - TAIL), (TAIL, 0), (3, 0)])
def test_drafts_leave_room_for_what_is_pending(pending: int, drafts: int) -> None:
    assert ReadPlan([1, 2], 0, (), pending).max_drafts == drafts


def test_what_a_copy_is_worth() -> None:
    text = [*message(INTERVAL + 100), *message(90), *message(80), 1, 2]
    ends = [INTERVAL, INTERVAL + 100, INTERVAL + 190, INTERVAL + 270]
    whole, later = ReadPlan(text, 0, {END}, PENDING), ReadPlan(text, INTERVAL + 150, {END}, PENDING)
    assert [whole.worth(at) for at in ends] == [WITHIN, ROOT, BOUNDARY, BOUNDARY]
    assert [later.worth(at) for at in ends[1:]] == [ROOT, BOUNDARY, BOUNDARY]
    assert ReadPlan([1] * 30, 0, {END}, PENDING).worth(29) == BOUNDARY
