"""Less time means fewer samples, never another verdict: what is left out is counted, and what is found is kept."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from outrider import LLM
from outrider_lab.certify import draft_consistency, enumeration, frequencies, identity, session
from outrider_lab.certify.allowance import Allowance
from outrider_lab.certify.report import Check
from outrider_lab.certify.statistics import detectable_rate
from outrider_lab.data.workloads import Question
from tests.model_folders import model_folder

QUESTIONS = [Question(str(i), "test", text, chat=False) for i, text in enumerate(("hello world", "one two three four"))]
COVERAGE = session.Coverage(toy_samples=20, prompts=2, tokens=12, each=3, samples=3)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def work(self, seconds: float, pieces: int) -> int:
        self.now += seconds
        return pieces


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = model_folder(tmp_path_factory.mktemp("model") / "target")
    return LLM(str(folder), dtype="float32", max_batch_size=4)


def test_a_part_has_its_share_of_what_is_left() -> None:
    clock = Clock()
    whole = Allowance(100, clock)
    first = whole.part(0.5)
    clock.now += 30
    assert (first.left, whole.left) == (20, 70)
    assert whole.part(0.1).left == pytest.approx(7)
    clock.now += 90
    assert (first.left, whole.left) == (0, 0)
    assert math.isinf(Allowance().left)


@pytest.mark.parametrize(("seconds", "times"), [(1000, 9), (22, 5), (2.1, 2), (0.1, 2)])
def test_as_many_samples_as_there_is_time_for(seconds: float, times: int) -> None:
    """A piece takes half a second here, and eight of them are a sample; the pilot takes two seconds."""
    clock = Clock()
    assert Allowance(seconds, clock).times(8, least=2, most=9, pilot=lambda: clock.work(2, 4)) == times


def test_without_an_end_nothing_is_tried() -> None:
    assert Allowance().times(8, least=2, most=9, pilot=lambda: pytest.fail("it was called")) == 9


def compare(llm: LLM, allowance: Allowance | None = None) -> dict[str, Any]:
    """What the comparison with plain decoding counts, in greedy mode."""
    found = list(identity.check(llm, [[5, 6], [7, 8]], ["lookup", "bigram"], verifiers=["matching"], tokens=12, each=3,
                                noise=0.0, allowance=allowance))  # fmt: skip
    assert len(found) == identity.count(2, ["lookup", "bigram"], verifiers=["matching"], each=3)
    checks = [check for check in found if isinstance(check, Check)]
    assert {check.status for check in checks} == {"pass"}
    left_out = checks[0].data["compared"] < checks[0].data["planned"]
    assert left_out == (f"({checks[0].data['planned']} planned)" in checks[0].summary)
    return checks[0].data


def test_without_time_every_setting_is_compared_once(llm: LLM) -> None:
    data, planned = compare(llm, Allowance(0)), 3 * 4 + 3 * 2 + 3 * 2  # mixed, together, alone
    assert (data["compared"], data["planned"], data["tokens"]) == (4 + 2, planned, identity.LEAST_TOKENS)


@pytest.mark.parametrize("seconds", [1e6, math.inf])
def test_with_time_everything_planned_is_compared(llm: LLM, seconds: float) -> None:
    data = compare(llm, Allowance(seconds))
    assert (data["compared"], data["tokens"]) == (data["planned"], 12)


def test_enumerable_sequences_have_a_least_number_of_samples() -> None:
    found = list(enumeration.check(["matching"], samples=150, sources=["lookup"], allowance=Allowance(0)))
    assert len(found) == enumeration.count(["matching"], sources=["lookup"])
    assert isinstance(found[-2], Check)
    assert set(found[-2].data["samples"].values()) == {enumeration.LEAST}


def test_a_session_without_time_makes_every_check_and_says_so(llm: LLM) -> None:
    said: list[str] = []
    expected: list[int] = []
    coverage = replace(COVERAGE, minutes=0.0)
    report = session.certify(
        llm, QUESTIONS, coverage, sources=["layer_skip"], verifiers=["matching", "rejection"], tick=said.append,
        expect=expected.append,
    )  # fmt: skip
    assert report.passed
    assert expected == [len(said)]
    assert len(report.checks) == 5  # no enumerable sequences: the toy model has no layers to skip
    assert report.subject["minutes of processor time"].endswith(" of about 0")
    drafts = next(check for check in report.checks if "refused before" in check.name)
    assert 0 < drafts.data["compared"] <= COVERAGE.tokens  # those of one prompt


def test_samples_of_the_pilot_do_not_count(llm: LLM) -> None:
    found = list(
        frequencies.check(llm, [[5, 6]], ["lookup"], verifiers=["rejection"], tokens=16, samples=7,
                          allowance=Allowance(1e6))
    )  # fmt: skip
    assert found[0] == "7 samples of every source and verifier"
    assert isinstance(found[-1], Check)
    assert set(found[-1].data["samples"].values()) == {7 * 16}


def test_what_was_compared_before_ctrl_c_is_said(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    generate, calls = llm.generate, [0]

    def wrong(*args: Any, **kwargs: Any) -> Any:
        """Another token in the third answer; Ctrl-C in the sixth."""
        calls[0] += 1
        if calls[0] == 6:
            raise KeyboardInterrupt
        outputs = generate(*args, **kwargs)
        if calls[0] == 3:
            outputs[0].token_ids[2] += 1
        return outputs

    monkeypatch.setattr(llm, "generate", wrong)
    report = session.certify(llm, QUESTIONS, COVERAGE, sources=["lookup"], verifiers=["matching"])
    assert not report.complete
    assert report.checks[-1].name == "greedy output"
    assert report.checks[-1].status == "fail"
    assert 0 < report.checks[-1].data["compared"] < report.checks[-1].data["planned"]
    assert "1 of the first 4 checks failed" in report.verdict


def test_drafts_compared_before_ctrl_c_are_said(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    compare = draft_consistency._DraftComparison.compare
    done = [0]

    def interrupted(self: Any, *args: Any) -> None:
        done[0] += 1
        if done[0] == 2:
            raise KeyboardInterrupt
        compare(self, *args)

    monkeypatch.setattr(draft_consistency._DraftComparison, "compare", interrupted)
    report = session.certify(llm, QUESTIONS, COVERAGE, sources=["layer_skip"], verifiers=["matching"])
    assert not report.complete
    assert report.checks[-1].name == "drafts do not depend on what was refused before"
    assert report.checks[-1].data["compared"] > 0


@pytest.mark.parametrize(("compared", "rate"), [(1, 0.9), (22, 0.1), (230, 0.01), (0, 1.0)])
def test_the_rate_that_would_be_seen(compared: int, rate: float) -> None:
    assert detectable_rate(compared) == pytest.approx(rate, rel=0.02)
