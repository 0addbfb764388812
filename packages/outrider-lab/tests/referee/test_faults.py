"""Faults planted in a server's speculation, and the checks of the suite that find them."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from outrider_lab.certify.report import Certificate
from outrider_lab.data import workloads
from outrider_lab.data.workloads import Question
from outrider_lab.referee.suite import Suite, run_suite
from tests.referee.faulty_engine import FAULTS, Fault
from tests.referee.faulty_server import faulty_server

FEW = [Question(name, "test", f"prompt {name}") for name in ("one", "two", "three")]
GREEDY = ("stale state", "wrong bonus token", "off-by-one roll-back")
"""Faults that change greedy texts too."""


def judge(fault: Fault | None, suite: Suite, questions: Sequence[Question] = FEW) -> Certificate:
    with faulty_server(fault) as url:
        return run_suite(url, None, questions, suite)


def failed(found: Certificate) -> set[str]:
    return {check.name for check in found.checks if check.status == "fail"}


def test_an_engine_without_a_fault_passes_though_its_seeds_give_other_tokens() -> None:
    found = judge(None, Suite(tokens=24, samples=64))
    assert failed(found) == set()
    assert next(c for c in found.checks if c.name == "same seed output").status == "note"
    assert next(c for c in found.checks if c.name == "greedy output, company of 16").data["compared"] == 16
    samples = next(c for c in found.checks if c.name == "frequencies of samples")
    assert list(samples.data["tests"]) == ["the whole", *(f"token {place}" for place in range(1, 7))]


def test_a_greedy_fault_is_placed_at_its_token() -> None:
    found = judge("stale state", Suite(tokens=24, samples=16))
    check = next(check for check in found.checks if check.name == "greedy output, alone")
    assert check.status == "fail"
    fork = check.data["forks"][0]
    assert fork["kind"] == "NOT A TIE"
    assert fork["token"] == fork["character"]  # a token is a letter here


def test_a_dropped_bias_is_found() -> None:
    assert failed(judge("dropped logit bias", Suite(tokens=24, samples=16))) == {"penalties and biases"}


@pytest.mark.slow
def test_the_default_suite_finds_every_fault() -> None:
    """The table of the documentation is this one; -s shows it."""
    questions = workloads.load("mix", count=12)
    print(f"\n| {'fault':24} | seconds | found by")
    for fault in (None, *FAULTS):
        began = time.perf_counter()
        result = judge(fault, Suite(), questions)
        found = failed(result)
        print(f"| {fault or 'none':24} | {time.perf_counter() - began:7.1f} | {', '.join(sorted(found)) or '-'}")
        if fault is None:
            assert not found
        elif fault in GREEDY:
            assert "greedy output, alone" in found
        elif fault == "dropped logit bias":
            assert found == {"penalties and biases"}
        else:
            assert found == {"frequencies of samples"}


@pytest.mark.slow
def test_an_engine_without_a_fault_passes_a_hundred_times() -> None:
    wrong = 0
    for turn in range(100):
        suite = Suite(tokens=16, samples=1024, sample_prompt=f"one two three {turn}")
        wrong += bool(failed(judge(None, suite)))
    print(f"\n{wrong} of 100 runs without a fault fail")
    assert wrong <= 1  # each fails with probability 0.001
