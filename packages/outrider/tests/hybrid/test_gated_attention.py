"""Gated attention, partial rotation, heads of 256 and shared experts, against NumPy in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from outrider.cache import CacheSpec
from outrider.models.batch import ForwardBatch, Span
from outrider.models.config import Experts, ModelConfig
from outrider.models.native_llama import NativeLlamaModel
from outrider.native.library import library
from tests.hybrid.reference import random_weights, reference_logits, tiny_config

pytestmark = pytest.mark.skipif(library() is None, reason="no native library")

TOKENS = [(7 * i * i + 3) % 70 for i in range(19)]
EXPERTS = Experts(count=6, used=2, size=40, normalised=True, shared_size=56)


def configs() -> dict[str, ModelConfig]:
    gated = tiny_config(recurrent=None)
    return {
        "gated": gated,
        "heads of 256": replace(gated, head_dim=256, rotary_dim=64),
        "shared expert": replace(gated, experts=EXPERTS),
        "shared expert as wide": replace(gated, experts=replace(EXPERTS, shared_size=40, normalised=False)),
    }


def logits(config: ModelConfig, weights: dict[str, np.ndarray], pieces: list[int]) -> np.ndarray:
    model = NativeLlamaModel(config, weights, target="float32")
    cache = model.new_cache(CacheSpec(max_seq_len=64))
    slot, start, found = cache.allocate(), 0, list[np.ndarray]()
    for count in pieces:
        cache.extend(slot, count)
        rows = range(start, start + count)
        batch = ForwardBatch([TOKENS[i] for i in rows], list(rows), (Span(slot, start, count),), None)
        found.append(model.forward(batch, cache).logits)
        start += count
    return np.concatenate(found)


@pytest.mark.parametrize("name", configs())
def test_logits_are_those_of_float64(name: str) -> None:
    config = configs()[name]
    weights = random_weights(config)
    expected, found = reference_logits(config, weights, TOKENS), logits(config, weights, [len(TOKENS)])
    assert np.abs(found - expected).max() < 2e-6 * np.abs(expected).max()
    assert np.array_equal(found, logits(config, weights, [1, 5, 3, len(TOKENS) - 9]))


@pytest.mark.parametrize("part", ["self_attn.q_proj", "mlp.shared_expert_gate", "mlp.shared_expert.down_proj"])
def test_each_part_matters(part: str) -> None:
    config = configs()["shared expert"]
    weights = random_weights(config)
    expected = reference_logits(config, weights, TOKENS)
    name = f"model.layers.2.{part}.weight"
    weights[name] = weights[name][::-1].copy() * np.float32(1.5)
    found = logits(config, weights, [len(TOKENS)])
    assert np.abs(found - expected).max() > 1e-3 * np.abs(expected).max()
