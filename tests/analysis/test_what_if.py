"""Sentences understood, and answers that follow from stated assumptions."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.analysis import theory
from outrider.analysis.roofline import HARDWARE, Run, Size
from outrider.analysis.what_if import EXAMPLE, Scenario, answer, parse
from outrider.errors import InvalidRequestError


def test_the_example_sentence() -> None:
    scenario = parse(EXAMPLE)
    assert scenario.target.parameters == 70e9
    assert scenario.draft is not None
    assert scenario.draft.parameters == 1e9
    assert (scenario.hardware.name, scenario.alpha, scenario.batch) == ("H100", 0.75, 1)
    found = answer(scenario)
    assert found.hardware.devices == 2  # 142 GB of weights
    assert any("2 devices" in note for note in found.notes)
    assert 2.3 < found.speedup < 3.3
    assert found.speedup < float(theory.oracle_tokens(0.75))
    assert max(found.by_k, key=lambda row: row[1])[0] == found.best_k


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("8b on two RTX 4090s, batch 16, context 4k, alpha = 0.6", (8e9, "RTX 4090", 2, 16, 4096, 16, 0.6, None)),
        ("a 500M draft for 13B at acceptance 80% on 4 x A100 in int8", (13e9, "A100", 4, 1, 512, 8, 0.8, 0.5e9)),
        ("7B in 4-bit on a T4, α 0.5", (7e9, "T4", None, 1, 512, 4, 0.5, None)),
        ("a 405B on 8 H200 with an 8B draft model, fp8, alpha .7", (405e9, "H200", 8, 1, 512, 8, 0.7, 8e9)),
    ],
)
def test_other_sentences(sentence: str, expected: tuple[object, ...]) -> None:
    s = parse(sentence)
    draft = None if s.draft is None else s.draft.parameters
    found = (s.target.parameters, s.hardware.name, s.devices, s.batch, s.context, s.target.weight_bits, s.alpha, draft)
    assert found == expected


@pytest.mark.parametrize(
    ("sentence", "lacking"),
    [
        ("a big model on an H100 at α 0.7", "target size"),
        ("a 7B at α 0.7", "machine"),
        ("a 7B on an H100", "acceptance rate"),
        ("a 7B on an H100 at α 1.7", "probability"),
        ("with a 1B draft on an H100 at α 0.7", "target size"),
    ],
)
def test_what_is_missing_is_named(sentence: str, lacking: str) -> None:
    with pytest.raises(InvalidRequestError, match=lacking):
        parse(sentence)


def scenario(**changes: Any) -> Scenario:
    options: dict[str, Any] = {"target": Size(7e9), "hardware": HARDWARE["A100"], "alpha": 0.7}
    return Scenario(**options | changes)


def test_a_run_is_bound_by_memory_first_and_by_arithmetic_later() -> None:
    run = Run(Size(7e9), HARDWARE["A100"])
    assert run(run.free_rows // 2) == run(1)
    assert run(4 * run.free_rows) > 2 * run(1)
    assert run(1) == pytest.approx(14e9 / (0.8 * 2.04e12), rel=0.15)  # the weights, read once


def test_gains_fall_with_the_batch_until_speculation_is_advised_against() -> None:
    speedups = [answer(scenario(batch=b)).speedup for b in (1, 32, 256)]
    assert speedups[0] > speedups[1] > speedups[2] >= 1
    last = answer(scenario(batch=512, alpha=0.3))
    assert last.best_k == 0
    assert any("do not speculate" in note for note in last.notes)


def test_a_free_draft_gains_more_than_one_that_costs() -> None:
    assert answer(scenario()).speedup > answer(scenario(draft=Size(1e9))).speedup


def test_too_few_devices_are_pointed_out() -> None:
    found = answer(scenario(target=Size(70e9), devices=1))
    assert any("do not fit" in note for note in found.notes)
