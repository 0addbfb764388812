"""Drafts of adaptive length come behind the first token, unless the prompt is so long that they delay it by nothing."""

from __future__ import annotations

from typing import Any

import pytest

from outrider import SamplingParams
from outrider.engine.draft_length.adaptive import AdaptiveLength
from outrider.engine.draft_length.cost import StepCost
from outrider.engine.draft_length.row_counts import ROWS
from outrider.models.toy import TableModel
from tests.small_engines import engine, request

FREE_ROWS = StepCost([0.1] * len(ROWS), [0.0] * len(ROWS))
MODEL = TableModel.random(7, 1, seed=3)
PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)


def drafted_in_passes(prompt: list[int], **speculation: Any) -> list[int]:
    """Draft tokens of every pass that emitted tokens."""
    served = engine(MODEL, draft=MODEL)
    served.use(AdaptiveLength(lambda: FREE_ROWS))
    asked = request(prompt, PARAMS, draft="model", **speculation)
    served.add(asked)
    while asked.finish_reason is None:
        served.step()
    return [drafted for drafted, _ in asked.stats.rounds]


@pytest.mark.parametrize(("length", "most"), [(1, 0), (99, 0), (250, 2)])
def test_the_prompts_pass_has_a_draft_row_for_a_hundred_rows(length: int, most: int) -> None:
    first, *later = drafted_in_passes([1] * length, spec_length="auto")
    assert first == most
    assert any(later)


def test_a_length_that_was_asked_for_holds_from_the_first_pass_on() -> None:
    assert drafted_in_passes([1, 2], spec_length=3)[0] == 3
