"""Several sources for one request: who is asked, who is named, and what happens when one of them fails."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import pytest

from outrider.config import SamplingParams
from outrider.drafters.api import Drafter, RequestView
from outrider.engine.draft_length.policy import DraftLength
from outrider.engine.drafting.isolation import MAX_OVERRUN, MAX_SECONDS, MAX_STRIKES
from outrider.engine.drafting.rounds import Drafting
from outrider.errors import ConfigError
from outrider.models.inputs import TEXT, InputSource
from outrider.models.toy import TableModel
from outrider.verify.draft import EMPTY, Draft
from outrider_multimodal.encoder_decoder import EncoderInput
from tests.small_engines import Scripted, engine, generate, request, run

VOCAB = 6
TARGET = TableModel.random(VOCAB, seed=2)
GREEDY = SamplingParams(max_tokens=24)
PLAIN = generate(engine(TARGET), [0, 1], GREEDY)


def right(name: str, length: int = 3, silent_at: Sequence[int] = ()) -> Scripted:
    """Knows what will be said, and says so except at some positions of the output."""

    def script(view: RequestView, budget: int) -> Draft:
        at = len(view.tokens) - view.prompt_length
        if at in silent_at:
            return EMPTY
        return Draft.chain(PLAIN[at : at + min(length, budget)], source=name)

    return Scripted(script)


def wrong(name: str) -> Scripted:
    def script(view: RequestView, budget: int) -> Draft:
        at = len(view.tokens) - view.prompt_length
        return Draft.chain([(PLAIN[at] + 1) % VOCAB], source=name)

    return Scripted(script)


def failing(view: RequestView, budget: int) -> Draft:
    raise RuntimeError("no signal")


def test_a_cascade_asks_the_next_where_the_first_is_silent() -> None:
    served = engine(TARGET, more={"a": right("a", silent_at=range(8)), "b": right("b")})
    r = request([0, 1], GREEDY, draft="a,b")
    outputs = run(served, r)["r"]
    assert list(r.output) == PLAIN
    sources = [o.source for o in outputs]
    assert sources == ["b"] * 8 + ["a"] * 16
    assert set(r.stats.by_source) == {"a", "b"}
    assert r.stats.num_draft_tokens == sum(x["drafted"] for x in r.stats.by_source.values())
    assert r.stats.num_accepted_draft_tokens == sum(x["accepted"] for x in r.stats.by_source.values())
    assert r.stats.as_dict()["draft_sources"] == r.stats.by_source


def test_the_second_is_not_asked_if_the_first_speaks() -> None:
    served = engine(TARGET, more={"a": right("a"), "b": Scripted(failing)})
    r = request([0, 1], GREEDY, draft="a,b")
    run(served, r)
    assert r.stats.draft_error is None


def test_the_best_goes_first() -> None:
    served = engine(TARGET, more={"bad": wrong("bad"), "good": right("good")})
    r = request([0, 1], GREEDY, draft="bad/good")
    run(served, r)
    assert list(r.output) == PLAIN
    assert r.stats.by_source["bad"] == {"drafted": 1, "accepted": 0}
    assert r.stats.by_source["good"]["accepted"] > 12


def test_a_merged_tree_says_where_each_token_came_from() -> None:
    served = engine(TARGET, more={"bad": wrong("bad"), "short": right("short", 1), "long": right("long", 4)})
    r = request([0, 1], GREEDY, draft="bad+short+long")
    outputs = run(served, r)["r"]
    assert list(r.output) == PLAIN
    accepted = {o.source for o in outputs if o.origin == "accepted"}
    assert accepted == {"short", "long"}
    assert "bad+short+long" in {o.source for o in outputs if o.origin in ("bonus", "recovered")}
    assert r.stats.by_source["bad"]["accepted"] == 0
    assert r.stats.target_runs < 8


def test_where_the_verifier_takes_chains_the_first_to_speak_is_taken() -> None:
    served = engine(TARGET, more={"a": right("a", silent_at=range(8)), "b": right("b")})
    r = request([0, 1], GREEDY, draft="a+b", verifier="rejection")
    run(served, r)
    assert list(r.output) == PLAIN
    assert r.stats.draft_error is None
    assert set(r.stats.by_source) == {"a", "b"}


def test_requests_of_several_combinations_share_a_step() -> None:
    """Each source is called once a round for all who want it."""
    calls: list[int] = []

    class Counting(Scripted):
        def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
            calls.append(len(requests))
            return super().propose(requests, budgets)

    a = right("a")
    b = Counting(lambda view, budget: Draft.chain([0], source="b"))
    served = engine(TARGET, slots=3, more={"a": a, "b": b})
    asked = [request([0, 1], GREEDY, id=draft, draft=draft) for draft in ("a+b", "b", "b,a")]
    run(served, *asked)
    assert all(list(r.output) == PLAIN for r in asked)
    assert calls[0] == 3
    assert a.running == b.running == set()


@pytest.mark.parametrize("draft", ["bad,good", "good+bad", "bad/good", "bad+good,none_left"])
def test_the_others_go_on_when_one_fails(draft: str, caplog: pytest.LogCaptureFixture) -> None:
    more = {"bad": Scripted(failing), "good": right("good"), "none_left": wrong("none_left")}
    served = engine(TARGET, more=more)
    r = request([0, 1], GREEDY, draft=draft)
    with caplog.at_level(logging.WARNING):
        run(served, r)
    assert list(r.output) == PLAIN
    assert r.stats.draft_error == "bad: RuntimeError: no signal"
    assert r.stats.by_source["good"]["accepted"] > 12
    assert sum("switched off" in record.message for record in caplog.records) == 1


def test_when_all_have_failed_nothing_is_asked_any_more() -> None:
    served = engine(TARGET, more={"x": Scripted(failing), "y": Scripted(failing)})
    r = request([0, 1], GREEDY, draft="x,y")
    run(served, r)
    assert list(r.output) == PLAIN
    assert r.stats.draft_error == "x: RuntimeError: no signal; y: RuntimeError: no signal"
    assert r.draft_limit == 0


def test_a_source_that_keeps_failing_is_switched_off_for_all(caplog: pytest.LogCaptureFixture) -> None:
    bad = Scripted(failing)
    served = engine(TARGET, more={"bad": bad})
    asked = [request([0, 1], GREEDY, id=str(i), draft="bad") for i in range(MAX_STRIKES + 2)]
    with caplog.at_level(logging.WARNING):
        for r in asked:
            run(served, r)
    assert all(list(r.output) == PLAIN for r in asked)
    assert sum("switched off" in record.message for record in caplog.records) == MAX_STRIKES
    assert "for this engine" in caplog.records[-1].message
    assert all("no signal" in str(r.stats.draft_error) for r in asked[:MAX_STRIKES])
    assert all("after failing" in str(r.stats.draft_error) for r in asked[MAX_STRIKES:])


def test_what_one_tenant_s_requests_break_is_not_switched_off_for_another() -> None:
    served = engine(TARGET, more={"bad": Scripted(failing)})
    for i in range(MAX_STRIKES + 1):
        r = request([0, 1], GREEDY, id=str(i), draft="bad")
        r.tenant = "one"
        run(served, r)
    other = request([0, 1], GREEDY, id="other", draft="bad")
    other.tenant = "other"
    run(served, other)
    assert "after failing" in str(r.stats.draft_error)
    assert "no signal" in str(other.stats.draft_error)


def test_a_source_that_fails_one_kind_of_request_drafts_on_for_others() -> None:
    """Where trees make it raise, chains of the same tenant are drafted, and where a grammar does, free text is."""
    chains = Scripted(lambda view, budget: failing(view, budget) if view.speculation.tree else good(view, budget))
    good = right("picky")._script
    served = engine(TARGET, more={"picky": chains})
    for i in range(MAX_STRIKES + 1):
        r = request([0, 1], GREEDY, id=str(i), draft="picky", tree="dynamic")
        run(served, r)
    assert "after failing" in str(r.stats.draft_error)
    for verifier in ("matching", "rejection"):
        other = request([0, 1], GREEDY, id="chain", draft="picky", verifier=verifier)
        run(served, other)
        assert list(other.output) == PLAIN
        assert other.stats.draft_error is None
        assert other.stats.by_source["picky"]["accepted"] > 0


def test_a_request_names_only_sources_that_are_loaded() -> None:
    served = engine(TARGET)
    with pytest.raises(ConfigError, match=r"'x\.y:Z' is not loaded.*extra_sources"):
        served.check(request([0, 1], GREEDY, draft="ngram,x.y:Z"))


class Clock:
    """Time passes only when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def slow(clock: Clock, seconds: float) -> Scripted:
    def script(view: RequestView, budget: int) -> Draft:
        clock.now += seconds
        return Draft.chain([0], source="slow")

    return Scripted(script)


def drafting_with(source: Drafter, clock: Clock) -> Drafting:
    return Drafting({"slow": source}, VOCAB, DraftLength(), clock)


def timed(seconds: float, prompt: int = 2, given: InputSource = TEXT) -> tuple[list[bool], str | None]:
    """Whether a source that takes so long is asked again, step after step, and why not."""
    clock = Clock()
    source = slow(clock, seconds)
    drafting, r = drafting_with(source, clock), request([0] * prompt, GREEDY, draft="slow")
    r.max_seq_len, r.input = 10_000, given
    drafting.start(r)
    spoke = []
    for _ in range(8):
        spoke.append(bool(drafting.propose([r], [2], [1])[0]))
        r.tokens.append(0)
    drafting.finish(r)
    assert not source.running
    return spoke, r.stats.draft_error


def test_ten_seconds_are_too_long() -> None:
    spoke, error = timed(10.0)
    assert spoke[1:] == [False] * 7
    assert error is not None
    assert error.startswith("TimeoutError: it took 10.0 s where 1.0 s are allowed")


def test_a_source_may_take_longer_to_read_a_prompt_but_not_again() -> None:
    spoke, error = timed(10.0, prompt=1000)
    assert spoke == [True, True, *[False] * 6]
    assert error is not None


def test_a_source_may_take_longer_to_hear_a_sound_but_not_again() -> None:
    spoke, error = timed(10.0, given=EncoderInput(np.zeros((80, 3000), np.float32)))
    assert spoke == [True, True, *[False] * 6]
    assert error is not None


def test_a_stall_now_and_then_is_forgiven() -> None:
    assert timed(MAX_SECONDS) == ([True] * 8, None)
    assert timed(MAX_SECONDS + MAX_OVERRUN / 9) == ([True] * 8, None)
    spoke, error = timed(MAX_SECONDS + MAX_OVERRUN / 4)
    assert spoke.count(True) == 5
    assert error is not None


def test_time_is_also_kept_where_it_starts_and_observes() -> None:
    clock = Clock()

    class Slow(Scripted):
        def start(self, request: RequestView) -> None:
            super().start(request)
            clock.now += 99.0

    drafting, r = drafting_with(Slow(failing), clock), request([0], GREEDY, draft="slow")
    drafting.start(r)
    assert "it took 99.0 s" in str(r.stats.draft_error)
    assert drafting.propose([r], [3], [1]) == [EMPTY]
    drafting.finish(r)
