"""Drafters may hand over arrays of other kinds and types: tensors of torch, float64, float16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from outrider.config import SamplingParams
from outrider.verify.arrays import Array
from outrider.verify.distribution import Context, TargetRows
from outrider.verify.draft import EMPTY, Draft
from outrider.verify.noise import Noise
from outrider.verify.verifiers.base import DraftSampler, Siblings
from tests.arrays import log, log_softmax, randn

ROW = log_softmax(randn(300, seed=1, scale=2))
KINDS: dict[str, Callable[[Any], Any]] = {
    "float64": lambda x: x.astype(np.float64),
    "torch": torch.from_numpy,
    "torch, float64": lambda x: torch.from_numpy(x).double(),
    "torch, not contiguous": lambda x: torch.from_numpy(np.repeat(x, 2))[::2],
}

pytestmark = pytest.mark.usefixtures("each_sampler")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("manner", Siblings)
def test_draws_are_those_of_float32(kind: str, manner: Siblings) -> None:
    given: Any = KINDS[kind](ROW)
    drawn = []
    for row in (ROW, given):
        sampler = DraftSampler(Noise(3), 5, shares_noise=False, sibling_sampling=manner)
        siblings = sampler.siblings(row, 4, depth=0, node=1)
        drawn.append([sampler.draw(row, depth=0, node=0), *siblings.tokens])
        assert all(isinstance(each, np.ndarray) and each.dtype == np.float32 for each in siblings.rows)
        drawn[-1] += [Noise(4).draw(row, 7), *Noise(4).draw_without_replacement(row, 3, 7)]
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("kind", KINDS)
def test_q_logits_become_arrays(kind: str) -> None:
    given: Any = KINDS[kind](np.stack([ROW]).reshape(-1)).reshape(1, -1)
    draft = Draft.chain([2], q_logits=given)
    assert isinstance(draft.q_logits, np.ndarray)
    assert np.array_equal(draft.q_logits, ROW[None])


def test_what_is_impossible_is_never_among_the_likeliest() -> None:
    """Not even where fewer tokens are possible than were asked for."""
    logits = log([[0.5, 0.0, 0.3, 0.2], [0.0, 0.0, 0.0, 1.0]])
    given: list[Array] = [logits, torch.from_numpy(logits)]
    for each in given:
        rows = TargetRows(each, SamplingParams(), Context((), ()), Draft.chain([0]))
        tokens, chances = rows.likeliest(4)
        found = [
            {t: p for t, p in zip(*row, strict=True) if p > 0}
            for row in zip(tokens.tolist(), chances.tolist(), strict=True)
        ]
        assert found[0] == pytest.approx({0: 0.5, 2: 0.3, 3: 0.2})
        assert found[1] == {3: 1.0}
        assert [sum(row) for row in chances.tolist()] == pytest.approx([1.0, 1.0])
    broken = TargetRows(np.full((1, 4), np.nan, np.float32), SamplingParams(), Context((), ()), EMPTY)
    assert not broken.likeliest(2)[1].any()
