"""Other engines' habits: forms of log-probabilities, requests that they refuse, no sampling, slowness."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from outrider_lab.certify.report import Certificate, Check
from outrider_lab.data.workloads import Question
from outrider_lab.referee.pace import fit_tokens
from outrider_lab.referee.sides import Reply, Side
from outrider_lab.referee.suite import Suite, run_suite
from tests.referee.faulty_engine import Fault
from tests.referee.faulty_server import Quirk, faulty_server

QUESTIONS = [Question(name, "test", f"prompt {name}") for name in ("one", "two", "three")]
SMALL = Suite(tokens=24, samples=16)


def judge(quirk: Quirk, fault: Fault | None = None) -> dict[str, Check]:
    """The checks of a server with ``quirk`` beside one without."""
    with faulty_server(fault, quirk=quirk) as url, faulty_server(quirk=alike(quirk)) as baseline:
        return by_name(run_suite(url, baseline, QUESTIONS, SMALL))


def alike(quirk: Quirk) -> Quirk | None:
    """The baseline has the same habit, but for refusals."""
    return quirk if quirk in ("llama.cpp", "never samples") else None


def by_name(found: Certificate) -> dict[str, Check]:
    return {check.name: check for check in found.checks}


def test_log_probabilities_of_llama_cpp_judge_a_fork_and_name_ids() -> None:
    with faulty_server("stale state", quirk="llama.cpp") as url:
        checks = by_name(run_suite(url, None, QUESTIONS, SMALL))
    fork = checks["greedy output, alone"].data["forks"][0]
    assert fork["kind"] == "NOT A TIE"
    assert fork["token"] == fork["character"]  # a token is a letter here
    assert "biases were not tested" not in checks["penalties and biases"].summary


def test_samples_that_are_all_the_same_test_nothing() -> None:
    check = judge("never samples")["frequencies of samples"]
    assert (check.status, check.data["compared"]) == ("note", 0)
    assert check.summary.startswith("not tested: all 32 samples")


def test_a_request_that_drafts_forbid_is_a_note_and_no_changed_answer() -> None:
    check = judge("no biases")["penalties and biases"]
    assert (check.status, check.data["refused"], check.data["same"]) == ("note", 3, 3)
    assert check.summary.endswith("; 3 were refused, 3 by the endpoint alone")
    assert "answered 400" in check.details[0]


def test_a_request_that_breaks_the_server_fails() -> None:
    check = judge("broken biases")["penalties and biases"]
    assert (check.status, check.data["same"]) == ("fail", 3)
    assert "answered 500" in check.details[0]


def test_a_stream_with_another_token_fails_and_is_placed() -> None:
    check = judge("other streams")["streams against whole"]
    assert (check.status, check.data["same"], check.data["ties"]) == ("fail", 0, 0)
    assert "parts at character 5, token 5" in check.details[0]


def test_a_server_that_answers_nothing_is_not_certified() -> None:
    with faulty_server(quirk="no completions") as url:
        found = run_suite(url, None, QUESTIONS, SMALL)
    assert by_name(found)["greedy output, alone"].status == "fail"
    assert not found.passed


def test_a_question_that_is_there_twice_is_asked_in_other_words(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    choices = Side.choices

    def noting(side: Side, options: Mapping[str, Any]) -> Any:
        asked.append(options["prompt"])
        return choices(side, options)

    monkeypatch.setattr(Side, "choices", noting)
    with faulty_server() as url:
        run_suite(url, None, QUESTIONS[:1] * 3, SMALL)
    assert {text.count("Once more, in other words. ") for text in asked if text.endswith("prompt one")} == {0, 1, 2}


@pytest.mark.parametrize(("seconds", "tokens"), [(1e9, 128), (98.0, 33), (5.0, 16), (float("inf"), 128)])
def test_a_slow_server_is_asked_for_shorter_answers(
    seconds: float, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At ten tokens/s, forty outputs of (33 + 16) / 2 tokens take 98 s."""

    def complete(side: Side, options: Mapping[str, Any]) -> Reply:
        return Reply("a", seconds=options["max_tokens"] / (10 if side.name == "baseline" else 20))

    monkeypatch.setattr(Side, "complete", complete)
    ours, theirs = Side("endpoint", "http://a", "m"), Side("baseline", "http://b", "m")
    assert fit_tokens(ours, theirs, {"prompt": "a"}, 128, 16, seconds) == tokens
