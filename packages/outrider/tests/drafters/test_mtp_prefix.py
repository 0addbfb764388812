"""The cache of a draft head begins with the rows of the prefix that the target's begins with."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.config import SamplingParams
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.native.library import library
from tests.hybrid_traffic import native
from tests.small_engines import request, run

pytestmark = pytest.mark.skipif(library() is None, reason="no native library")
TRAFFIC = native("float32")
TEXT = [(11 * i * i + 7 * i + 3) % 69 for i in range(53)]


def asked(prompt: list[int], id: str = "r", salt: str = "", count: int = 15) -> Request:
    made = request(prompt, SamplingParams(max_tokens=count), id=id, draft="mtp", spec_length=3)
    made.reports_drafts, made.cache_salt = True, salt
    return made


def drafts(engine: Engine, *requests: Request) -> dict[str, list[Any]]:
    """Every draft of each request: tokens and their probabilities, to the bit."""
    outputs = run(engine, *requests)
    assert all(each.stats.draft_error is None for each in requests)
    return {id: [(o.draft.tokens, o.draft.scores) for o in made if o.draft is not None] for id, made in outputs.items()}


def fresh(prompt: list[int], **options: Any) -> list[Any]:
    return drafts(TRAFFIC.engine(prefix_reuse=False), asked(prompt, **options))["r"]


@pytest.fixture(params=["contiguous", "paged"])
def served(request: pytest.FixtureRequest) -> Engine:
    return TRAFFIC.engine(slots=3, kind=request.param)


def test_a_conversation_drafts_as_if_all_of_it_had_been_read(served: Engine) -> None:
    prompt = TEXT[:37]
    for turn in range(3):
        one = asked(prompt)
        found = drafts(served, one)["r"]
        assert one.stats.cached_prompt_tokens == (len(prompt) - 4 if turn else 0)
        assert len(found) > 3
        assert found == fresh(prompt)
        prompt = [*prompt, *one.output, *TEXT[:3]]


def test_the_rows_of_a_request_that_goes_on_are_shared() -> None:
    served = TRAFFIC.engine(slots=2, kind="paged")
    first, second = asked(TEXT[:33], "a", count=30), asked(TEXT[:33], "b")
    second.prefix_leader = first
    found = drafts(served, first, second)["b"]
    assert second.stats.cached_prompt_tokens == 32
    assert found == fresh(TEXT[:33])


def test_a_prompt_that_is_read_again_after_preemption_drafts_as_before(served: Engine) -> None:
    one = asked(TEXT[:40])
    served.add(one)
    reports = [output.draft for _ in range(4) for output in served.step()]
    served._scheduler._memory.evict(one)  # what a want of memory does
    served._finish_drafts(one)
    served.abort("r")
    again = asked([*TEXT[:40], *one.output])
    assert [each for each in reports if each is not None]
    found = drafts(served, again)["r"]
    assert again.stats.cached_prompt_tokens > 38
    assert found == fresh([*TEXT[:40], *one.output])


def test_rows_of_another_text_are_not_taken(served: Engine) -> None:
    """A head's rows are found by the tokens after theirs, which two texts may share though their first one differs."""
    run(served, asked([TEXT[0] + 1, *TEXT[1:37]]))
    run(served, known := asked(TEXT[:37]))
    one = asked([*known.tokens, 8])
    assert drafts(served, one)["r"] == fresh([*known.tokens, 8])
    assert one.stats.cached_prompt_tokens == len(known.tokens) - 1
