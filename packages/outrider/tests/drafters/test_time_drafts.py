"""A source without an encoder is not timed, and one that fails to tell its time is asked all the same."""

from __future__ import annotations

from outrider.drafters.api import Drafter
from outrider.drafters.cost import DraftingCost, time_drafts
from outrider.drafters.text.ngram import NgramDrafter
from outrider.engine.draft_length.policy import DraftLength
from outrider.engine.drafting.rounds import Drafting
from outrider.verify.draft import Draft
from tests import small_models
from tests.small_engines import Scripted


def test_models_that_read_nothing_else_are_not_timed() -> None:
    assert time_drafts(small_models.llama()) is None
    assert NgramDrafter(96).time_drafts() is None


def test_a_drafter_that_fails_to_tell_is_asked_all_the_same() -> None:
    class Failing(Scripted):
        def time_drafts(self) -> DraftingCost | None:
            raise RuntimeError("no clock")

    source: Drafter = Failing(lambda request, budget: Draft.chain([1] * budget))
    assert Drafting({"source": source}, 96, DraftLength()).isolated.time_drafts("source") is None
