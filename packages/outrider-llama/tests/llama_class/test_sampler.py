"""The sampler chain: its rows, recorded from llama.cpp, and options that it has no equivalent for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from outrider.errors import InvalidRequestError
from outrider_llama.sampler import SampledRows, Sampler

CHAINS: list[tuple[dict[str, Any], list[float], list[int], dict[int, float]]] = [
    (
        {
            "top_k": 8,
            "typical_p": 1.0,
            "top_p": 0.95,
            "min_p": 0.05,
            "repeat_penalty": 1.1,
            "frequency_penalty": 0.4,
            "presence_penalty": 0.3,
            "last_n": 64,
        },
        [0.0, 0.6, -0.5, -1.8, -0.9, -2.0, 0.1, 2.7, -1.0, -1.2, 1.0, 0.7],
        [],
        {0: 0.0, 1: 0.6, 6: 0.1, 7: 2.7, 10: 1.0, 11: 0.7},
    ),
    (
        {
            "top_k": 40,
            "typical_p": 1.0,
            "top_p": 1.0,
            "min_p": 0.0,
            "repeat_penalty": 1.5,
            "frequency_penalty": 0.4,
            "presence_penalty": 0.3,
            "last_n": 2,
        },
        [-2.7, -0.9, -3.8, -2.6, -3.7, -0.5, -2.5, 0.5, 0.3, -0.4, -5.0, -1.1],
        [7, 5, 6, 3, 5, 4, 2],
        {0: -2.7, 1: -0.9, 2: -6.4, 3: -2.6, 4: -6.25, 5: -0.5, 6: -2.5, 7: 0.5, 8: 0.3, 9: -0.4, 10: -5.0, 11: -1.1},
    ),
    (
        {
            "top_k": 8,
            "typical_p": 0.5,
            "top_p": 0.6,
            "min_p": 0.3,
            "repeat_penalty": 1.5,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.3,
            "last_n": 64,
        },
        [-1.6, -0.1, 1.8, -1.2, -0.2, 0.2, 0.1, -2.5, 0.2, 2.7, -3.1, 1.7],
        [],
        {2: 1.8, 9: 2.7},
    ),
    (
        {
            "top_k": 0,
            "typical_p": 0.5,
            "top_p": 0.95,
            "min_p": 0.3,
            "repeat_penalty": 1.0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.3,
            "last_n": 2,
        },
        [-2.4, 0.1, 1.2, -0.4, 1.4, -0.1, 1.3, 2.9, -1.4, 0.4, -0.9, 0.3],
        [5, 4, 2, 0, 4, 9],
        {7: 2.9},
    ),
    (
        {
            "top_k": 4,
            "typical_p": 0.5,
            "top_p": 0.95,
            "min_p": 0.3,
            "repeat_penalty": 1.1,
            "frequency_penalty": 0.4,
            "presence_penalty": 0.3,
            "last_n": 2,
        },
        [-4.0, -0.9, -0.2, 2.5, 1.4, -0.7, -0.7, -0.5, 3.0, -0.9, -0.6, 0.7],
        [],
        {3: 2.5, 8: 3.0},
    ),
    (
        {
            "top_k": 4,
            "typical_p": 1.0,
            "top_p": 0.6,
            "min_p": 0.05,
            "repeat_penalty": 1.5,
            "frequency_penalty": 0.4,
            "presence_penalty": 0.0,
            "last_n": 2,
        },
        [-0.9, 2.3, 1.3, 0.0, 1.3, -0.7, 2.1, 0.0, 1.2, -2.6, 0.7, -3.4],
        [4, 11, 1, 7, 8],
        {1: 2.3, 6: 2.1},
    ),
    (
        {
            "top_k": 8,
            "typical_p": 0.9,
            "top_p": 0.95,
            "min_p": 0.3,
            "repeat_penalty": 1.0,
            "frequency_penalty": 0.4,
            "presence_penalty": 0.3,
            "last_n": 2,
        },
        [0.4, 1.0, -0.4, -0.4, 1.4, 1.0, -2.1, -0.2, 0.1, -2.1, 0.5, -1.7],
        [],
        {0: 0.4, 1: 1.0, 4: 1.4, 5: 1.0, 10: 0.5},
    ),
    (
        {
            "top_k": 8,
            "typical_p": 0.9,
            "top_p": 0.95,
            "min_p": 0.3,
            "repeat_penalty": 1.5,
            "frequency_penalty": 0.4,
            "presence_penalty": 0.3,
            "last_n": 64,
        },
        [-0.2, -4.0, -2.3, 0.7, -4.3, 1.7, -3.5, 1.5, -1.7, 1.6, 0.3, -3.1],
        [2, 5, 2, 11, 1, 6, 11],
        {3: 0.7, 5: 0.4333, 7: 1.5, 9: 1.6},
    ),
]
"""Options, logits, generated tokens, and the logits that llama.cpp (llama-cpp-python 0.3.36) keeps at last."""


@pytest.mark.parametrize("chain", CHAINS)
def test_a_row_is_the_one_of_llama_cpp(chain: tuple[dict[str, Any], list[float], list[int], dict[int, float]]) -> None:
    options, logits, generated, kept = chain
    row = np.array(logits, np.float32)
    rows = SampledRows(Sampler(**options), len(row), [0], None)
    rows.forbid_(row, generated)
    assert {int(i): pytest.approx(row[i], abs=1e-4) for i in np.flatnonzero(row > -np.inf)} == kept
    assert rows.row is not None
    assert rows.row.tolist() == pytest.approx(logits)


def test_penalties_count_generated_tokens_of_an_earlier_prompt_too() -> None:
    row = np.zeros(4, np.float32)
    SampledRows(Sampler(temp=0, presence_penalty=1.0), 4, [0, 1], None, earlier=[1]).forbid_(row, [2])
    assert row.tolist() == [0, -1, -1, 0]


def test_below_zero_a_temperature_draws_from_the_whole_row() -> None:
    sampler = Sampler(temp=-1.0)
    assert (sampler.engine_temperature, sampler.truncates) == (1.0, False)
    row = np.array([3.0, 0.0, -9.0], np.float32)
    SampledRows(sampler, 3, [0], None).forbid_(row, [])
    assert np.isfinite(row).all()


def test_a_processor_sees_the_row_before_bias_and_penalties() -> None:
    seen: list[tuple[list[int], list[float]]] = []

    def processor(ids: Any, scores: Any) -> Any:
        seen.append((ids.tolist(), scores.tolist()))
        return scores + 1

    row = np.array([0.0, 1.0, 2.0], np.float32)
    sampler = Sampler(temp=0, logits_processor=[processor], logit_bias={"0": 5.0}, presence_penalty=0.5)  # type: ignore[dict-item]
    SampledRows(sampler, 3, [7], None).forbid_(row, [1])
    assert seen == [([7, 1], [0.0, 1.0, 2.0])]
    assert row.tolist() == [6.0, 1.5, 3.0]


@pytest.mark.parametrize(
    "options",
    [{"mirostat_mode": 2}, {"tfs_z": 0.9}, {"penalize_nl": False}, {"grammar": 'root ::= "a"'}],
)
def test_what_is_not_supported_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=f"{next(iter(options))}=.* cannot be used: "):
        Sampler(**options)
    assert Sampler(mirostat_mode=2, temp=0).changes_rows is False  # greedy: llama.cpp does not use it either
