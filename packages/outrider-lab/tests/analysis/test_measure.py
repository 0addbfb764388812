"""Rounds counted, rates by depth, and what shorter drafts would have done."""

from __future__ import annotations

import pytest

from outrider import LLM, SamplingParams, SpeculationParams
from outrider_lab.measure import (
    acceptance_by_position,
    alpha,
    measure_latency_curve,
    measure_settings,
    truncate_rounds,
)
from tests.model_folders import model_folder


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = str(model_folder(tmp_path_factory.mktemp("models") / "target"))
    return LLM(folder, draft_model=folder, dtype="float32", draft_dtype="float32", max_batch_size=2)


def test_alpha_counts_only_tokens_that_were_looked_at() -> None:
    # 3 of 3 accepted; 1 accepted, the second refused, the third never looked at; nothing drafted.
    assert alpha([(3, 3), (3, 1), (0, 0)]) == pytest.approx(4 / 5)
    assert alpha([(0, 0)]) is None
    assert acceptance_by_position([(3, 3), (3, 1), (1, 0)], 4) == [2 / 3, 1 / 2, 1.0, 1.0]


@pytest.mark.parametrize(
    ("rounds", "k", "expected"),
    [
        ([(4, 4)], 4, [(4, 4)]),
        ([(4, 4)], 1, [(1, 1), (1, 1), (0, 0)]),  # 5 tokens: 2 + 2 + the bonus
        ([(4, 2)], 1, [(1, 1), (1, 0)]),  # the refused token is drafted again, and refused again
        ([(4, 1)], 1, [(1, 1)]),  # the refused token's place is the shorter draft's bonus
        ([(4, 0), (0, 0)], 2, [(2, 0), (0, 0)]),
    ],
)
def test_shorter_drafts(rounds: list[tuple[int, int]], k: int, expected: list[tuple[int, int]]) -> None:
    assert truncate_rounds(rounds, k) == expected
    assert sum(a + 1 for _, a in expected) == sum(a + 1 for _, a in rounds)  # the same tokens


def test_shortened_rounds_are_those_of_a_real_run(llm: LLM) -> None:
    prompt, params = list(range(5, 25)), SamplingParams(max_tokens=40, ignore_eos=True, temperature=1.0, seed=5)

    def rounds(k: int) -> list[tuple[int, int]]:
        speculation = SpeculationParams(draft="model", spec_length=k, draft_temperature=2.0)
        return llm.generate([prompt], params, speculation=speculation)[0].stats.rounds

    long, short = rounds(7), rounds(2)
    predicted = truncate_rounds(long, 2)
    assert len(predicted) == pytest.approx(len(short), abs=2)  # the last step is cut by max_tokens
    assert predicted[:5] == short[:5]


def test_observe_runs_every_setting_on_every_prompt(llm: LLM) -> None:
    settings = {"none": SpeculationParams(draft="none"), "model": SpeculationParams(draft="model", spec_length=3)}
    said: list[str] = []
    found = measure_settings(
        llm, [[5, 6, 7], [9, 10]], SamplingParams(max_tokens=12, ignore_eos=True), settings, rounds=2, tick=said.append
    )
    assert found["none"].outputs == found["model"].outputs
    assert found["none"].tokens == [11, 11]
    assert found["model"].alpha == 1.0  # the draft is the target
    assert found["none"].alpha is None
    assert found["model"].s_per_token > 0
    assert found["model"].draft_s_per_token > 0
    assert len(said) == 2 + 2 * 2 * 2


def test_cost_curve_has_a_point_for_each_row_count(llm: LLM) -> None:
    curve = measure_latency_curve(llm.model, context=1000, rows=(1, 4), repeat=2)
    assert set(curve.points) == {1, 4}
    assert curve(2) > 0
