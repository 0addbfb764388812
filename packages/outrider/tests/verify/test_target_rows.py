"""TargetRows: the row of each tree node, worked out with the context its path implies."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.config import SamplingParams
from outrider.errors import NumericalError
from outrider.verify.batch_argmax import BatchArgmax
from outrider.verify.distribution import Context, TargetRows, TokenView, log_weights
from outrider.verify.draft import EMPTY, Draft
from outrider.verify.native import NativeSampler
from outrider.verify.noise import Noise
from tests import other_device
from tests.arrays import Floats, floats, log_softmax, randn

pytestmark = pytest.mark.usefixtures("each_sampler")

TREE = Draft(tokens=(3, 4, 4, 5), parents=(-1, 0, 0, 1))
PATHS: list[list[int]] = [[], [3], [3, 4], [3, 4], [3, 4, 5]]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.8, repetition_penalty=1.5),
        SamplingParams(temperature=0.8, frequency_penalty=0.7, presence_penalty=0.1, top_p=0.8),
        SamplingParams(temperature=0.0, presence_penalty=2.0),
        SamplingParams(temperature=1.0, min_tokens=4),
    ],
    ids=str,
)
def test_each_row_sees_the_draft_path_that_leads_to_it(params: SamplingParams) -> None:
    logits = randn(5, 9, seed=0)
    rows = TargetRows(logits, params, Context([1, 2], [4, 4]), TREE, stop_ids=[0])
    for row, path in enumerate(PATHS):
        expected = log_weights(logits[row : row + 1], [params], [Context([1, 2], [4, 4, *path])], stop_ids=[0])[0]
        assert np.array_equal(rows.log_weights(row), expected)
    assert rows.log_weights(2) is rows.log_weights(2)


@given(st.integers(0, 2**32), st.sampled_from([np.float32, np.float16]), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_the_greedy_fast_path_is_the_general_path(seed: int, dtype: type[np.floating[Any]], vocab_size: int) -> None:
    generator = np.random.default_rng(seed)
    logits = generator.integers(-3, 3, (5, 12)).astype(dtype)  # many ties
    logits[generator.random((5, 12)) < 0.2] = -math.inf
    logits[:, 0] = -2.0  # every row has a possible token
    rows = TargetRows(logits, SamplingParams(), Context((), ()), TREE, vocab_size=vocab_size)
    for row in range(5):
        fast = rows.draw(row, Noise(seed), position=row)
        assert fast == int(rows.log_weights(row).argmax())
        assert fast == Noise(seed).draw(rows.log_weights(row), row)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1.0)], ids=["greedy", "sampled"])
def test_a_bad_row_is_an_error_only_when_it_is_needed(bad: float, params: SamplingParams) -> None:
    logits = np.zeros((5, 9), np.float32)
    logits[2, 7] = bad
    rows = TargetRows(logits, params, Context((), ()), TREE)
    rows.draw(1, Noise(0), 0)
    with pytest.raises(NumericalError):
        rows.draw(2, Noise(0), 0)


def test_an_impossible_row_is_an_error_in_the_greedy_fast_path() -> None:
    rows = TargetRows(np.full((1, 4), -math.inf, np.float32), SamplingParams(), Context((), ()), EMPTY)
    with pytest.raises(NumericalError, match="no token is possible"):
        rows.draw(0, Noise(0), 0)


def test_greedy_with_options_draws_what_the_options_leave() -> None:
    logits = floats([[0.0, 1.0, 2.0]])
    rows = TargetRows(logits, SamplingParams(banned_token_ids=[2]), Context((), ()), EMPTY)
    assert rows.draw(0, Noise(0), 0) == 1


def test_greedy_waits_for_the_minimum_length() -> None:
    params = SamplingParams(min_tokens=2, stop_token_ids=[2])
    logits = floats([[0.0, 1.0, 2.0]])
    drawn = [TargetRows(logits, params, Context((), (0,) * n), EMPTY).draw(0, Noise(0), n) for n in range(3)]
    assert drawn == [1, 1, 2]


def test_padding_has_no_part_in_logprobs() -> None:
    logits = floats([[0.5, -1.0, 2.0, 9.0]])
    rows = TargetRows(logits, SamplingParams(), Context((), ()), EMPTY, vocab_size=3)
    (found,) = rows.token_logprobs([0], [1], 3)
    expected = log_softmax(logits[0, :3])
    assert list(found) == [1, 2, 0]  # the one that was taken, then by rank
    assert found == pytest.approx({i: float(expected[i]) for i in range(3)})


def test_logprobs_are_those_before_any_option() -> None:
    logits = randn(1, 30, seed=1)
    rows = TargetRows(logits, SamplingParams(temperature=0.2, top_k=1, banned_token_ids=[3]), Context((), ()), EMPTY)
    (found,) = rows.token_logprobs([0], [3], 20)
    expected = log_softmax(logits[0])
    assert found == pytest.approx({i: float(expected[i]) for i in (3, *np.argsort(-expected)[:20].tolist())})


@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_processed_logprobs_are_those_of_the_distribution_that_is_drawn_from(temperature: float) -> None:
    """Greedy ones are those of temperature 1, for a certain token tells nothing."""
    params = SamplingParams(
        temperature=temperature,
        top_k=9,
        logit_bias={4: 3.0},
        banned_token_ids=[3],
        presence_penalty=0.5,
        logprobs_mode="processed_logprobs",
    )
    logits = randn(2, 32, seed=1)
    rows = TargetRows(logits, params, Context([7], [5]), Draft.chain([6]), vocab_size=30)
    found = rows.token_logprobs([0, 1], [4, 3], 20)
    for row, own, taken, seen in zip(logits[:, :30].astype(np.float64), found, (4, 3), ([5], [5, 6]), strict=True):
        row[4] += 3.0
        row[seen] -= 0.5
        row[3] = -np.inf
        if temperature:
            row[row < np.sort(row)[-9]] = -np.inf
        expected = log_softmax(row / (temperature or 1.0))
        best = np.argsort(-expected, kind="stable")[: 9 if temperature else 20].tolist()
        assert own == pytest.approx({i: float(expected[i]) for i in (taken, *best)}, abs=1e-5)


def test_requests_of_one_pass_share_a_search_for_the_largest_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its own rows of the pass, and whoever asks first finds those of all."""
    calls: list[int] = []
    find = NativeSampler.first_largest

    def counted(self: NativeSampler, rows: Floats, width: int) -> list[tuple[int, float]]:
        calls.append(len(rows))
        return find(self, rows, width)

    monkeypatch.setattr(NativeSampler, "first_largest", counted)
    logits = randn(5, 8, seed=0)
    logits[:, 7] = 9.0  # padding
    largest, context = BatchArgmax(logits, 7), Context((), ())
    owners = {0: Draft.chain([1]), 2: EMPTY, 3: Draft.chain([2])}
    for first, draft in owners.items():
        rows = TargetRows(logits, SamplingParams(), context, draft, vocab_size=7, first=first, largest=largest)
        alone = TargetRows(logits[first : first + 1 + len(draft)], SamplingParams(), context, draft, vocab_size=7)
        for row in range(1 + len(draft)):
            assert rows.draw(row, Noise(0), row) == int(logits[first + row, :7].argmax())
            assert np.array_equal(rows.log_weights(row), alone.log_weights(row))
        ours, theirs = rows.likeliest(3), alone.likeliest(3)
        assert np.array_equal(ours[0], theirs[0])
        assert np.array_equal(ours[1], theirs[1])
    assert calls in ([5], [])  # none without the library


def test_a_part_of_a_list_stays_as_it_was_when_the_list_grows() -> None:
    tokens = [1, 2, 3, 4]
    part = TokenView(tokens, 1, 3)
    tokens.append(5)
    assert (list(part), len(part), part[-1], part[:1], 4 in part) == ([2, 3], 2, 3, [2], False)


def test_logits_elsewhere_come_over_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a GPU's logits: greedy choices without a copy of the rows, and all rows in one copy for those who sample."""
    logits = torch.from_numpy(randn(4, 8, seed=1)).bfloat16()
    logits[2, 5] = logits[2, 3] = 4.0  # the first of equals
    logits[:, 7] = 9.0  # padding
    here, there = BatchArgmax(logits, 7), BatchArgmax(other_device.There(logits), 7)
    assert [there[i] for i in range(4)] == [here[i] for i in range(4)]
    assert there[2][0] == 3
    copies: list[tuple[int, ...]] = []
    copy = torch.Tensor.copy_

    def counted(self: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        copies.append(tuple(source.shape))
        return copy(self, source)

    monkeypatch.setattr(torch.Tensor, "copy_", counted)
    for params in (SamplingParams(temperature=0.7), SamplingParams(temperature=0.7, top_k=3, banned_token_ids=[1])):
        for first in range(4):
            given: dict[str, Any] = {"vocab_size": 7, "first": first}
            ours = TargetRows(other_device.There(logits), params, Context((), ()), EMPTY, largest=there, **given)
            theirs = TargetRows(logits, params, Context((), ()), EMPTY, largest=here, **given)
            assert ours.draw(0, Noise(first), 3) == theirs.draw(0, Noise(first), 3)
    assert copies == [(4, 8)]
