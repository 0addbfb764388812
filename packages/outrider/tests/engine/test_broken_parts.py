"""Whatever a draft source does costs speed, never output; a model that breaks ends only the request at hand."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider.config import SamplingParams
from outrider.drafters.api import Outcome, RequestView
from outrider.errors import InvalidRequestError, NoTokenError, NumericalError
from outrider.models.toy import TableModel
from outrider.verify.draft import Draft
from tests.arrays import Floats, log
from tests.nan_models import check_nan_of_a_refused_draft
from tests.small_engines import Scripted, engine, generate, request, run

VOCAB = 6
TARGET = TableModel.random(VOCAB, seed=2)
GREEDY = SamplingParams(max_tokens=12)
SAMPLED = SamplingParams(max_tokens=12, temperature=1.0, seed=3)


def chain(tokens: Sequence[Any], q: Floats | None = None) -> Draft:
    return Draft.chain(tokens, q_logits=q, source="bad")


def failing(view: RequestView, budget: int) -> Draft:
    raise RuntimeError("no signal")


Script = Callable[[RequestView, int], Any]
# What a source may say, and why it is switched off.
NONSENSE: dict[str, tuple[Script, str]] = {
    "raises": (failing, "RuntimeError: no signal"),
    "beyond the vocabulary": (lambda view, budget: chain([0, VOCAB]), f"token {VOCAB}, outside the vocabulary"),
    "negative": (lambda view, budget: chain([-1]), "token -1, outside"),
    "too long": (lambda view, budget: chain([0] * (budget + 1)), "5 tokens where 4 were allowed"),
    "not integers": (lambda view, budget: chain([0.5]), "token 0.5, outside"),
    "tensors": (lambda view, budget: chain([np.int64(1)]), r"token np.int64\(1\), outside"),
    "no draft": (lambda view, budget: None, "TypeError"),
    "a list": (lambda view, budget: [1, 2], "AttributeError"),
    "flat q": (lambda view, budget: chain([0, 1], np.zeros(2, np.float32)), r"its q_logits are float32 \[2\]"),
    "integer q": (lambda view, budget: chain([0], np.zeros((1, VOCAB), np.int64)), "its q_logits are int64"),
    "too few rows of q_logits": (
        lambda view, budget: chain([0, 1], np.zeros((1, VOCAB), np.float32)),
        "1 rows of q_logits",
    ),
    "parents after children": (lambda view, budget: Draft((0, 1), (1, -1)), "parents come before"),
}


class WrongCount(Scripted):
    def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        return [chain([0])] * (len(requests) + 1)


class Deaf(Scripted):
    """Fails where it should learn, and where it should let go."""

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        raise KeyError("what?")

    def finish(self, request_id: str) -> None:
        raise OSError("it sticks")


class Unwilling(Scripted):
    def start(self, request: RequestView) -> None:
        raise MemoryError("full")


SOURCES: dict[str, tuple[Callable[[], Scripted], str]] = {
    name: (lambda script=script: Scripted(script), why) for name, (script, why) in NONSENSE.items()
} | {
    "wrong count": (lambda: WrongCount(failing), "zip"),
    "fails to observe": (lambda: Deaf(lambda view, budget: chain([0])), "what?"),
    "fails to start": (lambda: Unwilling(failing), "MemoryError: full"),
}


@pytest.mark.parametrize("verifier", ["matching", "rejection"])
@pytest.mark.parametrize("name", SOURCES)
def test_a_broken_source_changes_no_output(name: str, verifier: str, caplog: pytest.LogCaptureFixture) -> None:
    make, why = SOURCES[name]
    served = engine(TARGET, more={"bad": make()})
    params = SAMPLED if verifier == "matching" else GREEDY
    expected = generate(served, [0, 1], params)
    with caplog.at_level(logging.WARNING):
        r = request([0, 1], params, draft="bad", spec_length=4, verifier=verifier)
        run(served, r)
    assert list(r.output) == expected
    assert r.stats.draft_error is not None
    assert re.search(why, r.stats.draft_error)
    assert sum("switched off" in record.message for record in caplog.records) == 1
    assert r.stats.as_dict()["draft_error"] == r.stats.draft_error
    assert generate(served, [0, 1], params, draft="model") == expected  # the other sources go on


def test_only_the_requests_of_the_broken_source_lose_their_drafts() -> None:
    served = engine(TARGET, slots=3, more={"bad": Scripted(failing)})
    good, bad = request([0, 1], GREEDY, id="g", draft="model"), request([0, 1], GREEDY, id="b", draft="bad")
    run(served, good, bad)
    assert list(good.output) == list(bad.output)
    assert good.stats.draft_error is None
    assert good.stats.num_accepted_draft_tokens > 0


def test_every_request_of_a_failing_call_loses_the_source_which_is_not_asked_again() -> None:
    calls: list[str] = []

    def fail(view: RequestView, budget: int) -> Draft:
        calls.append(view.id)
        raise RuntimeError("out of ideas")

    served = engine(TARGET, slots=3, more={"bad": Scripted(fail)})
    asked = [request([0, i], GREEDY, id=str(i), draft="bad") for i in range(2)]
    run(served, *asked)
    assert len(calls) == 1
    assert {r.stats.draft_error for r in asked} == {"RuntimeError: out of ideas"}


@pytest.mark.parametrize(
    "q",
    [
        np.full((2, VOCAB), np.nan, np.float32),
        np.full((2, VOCAB), -np.inf, np.float32),
        np.full((2, VOCAB), np.inf, np.float32),
        log(np.tile(np.arange(VOCAB) > 1, (2, 1))),  # denies its own tokens
        np.zeros((2, 3), np.float32),  # a smaller vocabulary
        np.zeros((2, VOCAB + 3), np.float32),  # a padded one
    ],
    ids=["nan", "-inf", "inf", "denies", "narrow", "wide"],
)
def test_a_q_that_cannot_be_true(q: Floats) -> None:
    served = engine(TARGET, more={"bad": Scripted(lambda view, budget: chain([0, 1], q) if budget > 1 else chain([]))})
    expected = generate(served, [0, 1], GREEDY)
    assert generate(served, [0, 1], GREEDY, draft="bad", verifier="rejection") == expected
    assert generate(served, [0, 1], SAMPLED, draft="bad") == generate(served, [0, 1], SAMPLED)
    r = request([0, 1], SAMPLED, draft="bad", verifier="rejection")
    run(served, r)
    assert len(r.output) == 12
    assert r.stats.draft_error is None


def test_branches_where_the_verifier_takes_none() -> None:
    served = engine(TARGET, more={"tree": Scripted(lambda view, budget: Draft((0, 1), (-1, -1)))})
    r = request([0, 1], GREEDY, draft="tree", verifier="rejection")
    run(served, r)
    assert list(r.output) == generate(served, [0, 1], GREEDY)
    assert "takes chains" in str(r.stats.draft_error)


def sick_table() -> Floats:
    """After token 5 the model has nothing but NaN to say; 4 leads there."""
    table = TARGET.table.copy()
    table[4, :, :] = 0
    table[:, 4, 5] = 50.0
    table[:, 5] = np.nan
    return table


@pytest.mark.parametrize("draft", ["none", "model"])
def test_nan_ends_only_its_request(draft: str) -> None:
    sick = TableModel(sick_table())
    served = engine(sick, draft=TARGET, slots=2)
    healthy = SamplingParams(max_tokens=12, temperature=1.0, seed=1, banned_token_ids=[4, 5])
    expected = generate(served, [0, 1], healthy)
    good, bad = request([0, 1], healthy, id="good"), request([0, 4], GREEDY, id="bad", draft=draft)
    run(served, bad, good)
    assert isinstance(bad.error, NumericalError)
    assert list(bad.output) == [5]
    assert bad.finish_reason is None
    assert good.error is None
    assert list(good.output) == expected
    assert generate(served, [0, 1], healthy) == expected
    assert served.cache.free_tokens() == 2 * served.max_seq_len


def test_nan_within_a_prompt_that_is_scored_ends_only_its_request() -> None:
    served = engine(TableModel(sick_table()), slots=2)
    healthy = SamplingParams(max_tokens=12, temperature=1.0, seed=1, banned_token_ids=[4, 5], prompt_logprobs=2)
    expected = generate(served, [0, 1], healthy)
    good, bad = request([0, 1], healthy, id="good"), request([0, 5, 1, 2], healthy, id="bad")
    run(served, bad, good)
    assert isinstance(bad.error, NumericalError)
    assert not bad.output
    assert list(good.output) == expected
    assert served.cache.free_tokens() == 2 * served.max_seq_len


@pytest.mark.parametrize("prompt", [8, 511])
@pytest.mark.parametrize("at", [0, 1])
def test_nan_that_a_refused_draft_leaves_behind(prompt: int, at: int) -> None:
    check_nan_of_a_refused_draft("native", prompt, at)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"allowed_token_ids": [2], "banned_token_ids": [2]}, "allowed_token_ids"),
        ({"banned_token_ids": range(VOCAB)}, "banned_token_ids"),
        ({"allowed_token_ids": [2, 3], "stop_token_ids": [2, 3], "min_tokens": 1}, "min_tokens"),
    ],
)
def test_options_that_can_leave_no_token_are_refused(options: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError, match="allowed") as caught:
        engine(TARGET).add(request([0, 1], SamplingParams(**options)))
    assert caught.value.param == param


def test_options_that_leave_no_token_on_the_way() -> None:
    class OnlyThree:
        def mask(self, output: Sequence[int]) -> NDArray[np.bool_]:
            allowed: NDArray[np.bool_] = np.arange(VOCAB) == 3
            return allowed

    served = engine(TARGET)
    r = request([0, 1], SamplingParams(allowed_token_ids=[2]), draft="ngram")
    r.constraint = OnlyThree()
    run(served, r)
    assert isinstance(r.error, NoTokenError)
    assert "allowed_token_ids" in str(r.error)
    assert list(r.output) == []
    assert len(generate(served, [0, 1], GREEDY)) == 12
