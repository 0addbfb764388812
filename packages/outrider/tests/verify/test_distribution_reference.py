"""The same options in Hugging Face transformers, on rows without ties (where its definitions agree with ours)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from outrider.config import SamplingParams
from outrider.verify.distribution import Context, log_weights
from tests.arrays import randn, softmax

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.7},
        {"top_k": 17},
        {"top_p": 0.8},
        {"top_p": 0.05},
        {"min_p": 0.2},
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 0.8, "temperature": 1.5, "top_k": 40, "top_p": 0.9, "min_p": 0.05},
    ],
    ids=str,
)
def test_agrees_with_transformers(options: dict[str, float], seed: int) -> None:
    logits = randn(1, 2000, seed=seed) * 3
    context = Context(prompt=[5, 6, 7], output=[8, 8, 9])
    params = SamplingParams(**({"temperature": 1.0} | options))  # type: ignore[arg-type]
    ours = softmax(log_weights(logits, [params], [context]))
    ids = torch.tensor([[*context.prompt, *context.output]])
    scores = torch.from_numpy(logits.copy())
    for name, make in (
        ("repetition_penalty", transformers.RepetitionPenaltyLogitsProcessor),
        ("temperature", transformers.TemperatureLogitsWarper),
        ("top_k", transformers.TopKLogitsWarper),
        ("top_p", transformers.TopPLogitsWarper),
        ("min_p", transformers.MinPLogitsWarper),
    ):
        if name in options:
            scores = make(options[name])(ids, scores)
    theirs = softmax(scores)
    assert np.array_equal(ours > 0, theirs > 0)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-7)
