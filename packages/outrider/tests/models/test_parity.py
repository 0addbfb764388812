"""Logits agree with transformers for every family, from files that transformers itself wrote."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from outrider.cache import CacheSpec
from outrider.config import ModelOptions
from outrider.models.batch import ForwardBatch, Span
from outrider.verify.arrays import Floats, host
from outrider.weights.loader import load_model
from tests import small_models

VOCAB = 96
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def build(kind: tuple[Any, Any], **changes: Any) -> Any:
    dims: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 112,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "attn_implementation": "eager",
    }
    config_class, model_class = kind
    torch.manual_seed(0)
    model = model_class(config_class(**dims | changes)).eval()
    for name, parameter in model.named_parameters():  # as initialised, biases and norms would do nothing
        noise = torch.randn_like(parameter)
        if "norm" in name:
            parameter.data += 0.2 * noise
        elif name.endswith("bias"):
            parameter.data = 0.5 * noise
        else:
            parameter.data = noise / parameter.shape[-1] ** 0.5 * (8.0 if "embed" in name else 1.5)
    return model


LLAMA, MISTRAL = (LlamaConfig, LlamaForCausalLM), (MistralConfig, MistralForCausalLM)
QWEN2, QWEN3 = (Qwen2Config, Qwen2ForCausalLM), (Qwen3Config, Qwen3ForCausalLM)
FAMILIES: dict[str, Callable[[], Any]] = {
    "llama 2, all heads": lambda: build(LLAMA, num_key_value_heads=4),
    "llama 3 scaling": lambda: build(LLAMA, rope_parameters={"rope_theta": 500000.0} | LLAMA3),
    "linear scaling": lambda: build(
        LLAMA, rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    ),
    "smollm2": lambda: build(
        LLAMA, hidden_size=72, num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True
    ),
    "wide heads": lambda: build(LLAMA, head_dim=32),
    "mistral": lambda: build(MISTRAL, sliding_window=None),
    "mistral, window 20": lambda: build(MISTRAL, sliding_window=20, head_dim=16),
    "qwen2": lambda: build(QWEN2, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
    "qwen3": lambda: build(QWEN3, head_dim=24, tie_word_embeddings=True),
}
TOKENS = small_models.ids(100, VOCAB)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Floats]:
    """A saved model and its logits [100, vocab] of ``TOKENS``."""
    theirs = FAMILIES[request.param]()
    folder = tmp_path_factory.mktemp("family")
    theirs.save_pretrained(folder)
    with torch.inference_mode():
        return folder, theirs(torch.tensor([TOKENS])).logits[0].numpy()


def logits(folder: Path, dtype: Any, sizes: tuple[int, ...] = (100,)) -> Floats:
    model = load_model(folder, ModelOptions(dtype=dtype, device="cpu"))
    cache = model.new_cache(CacheSpec(max_seq_len=128))
    slot = cache.allocate()
    parts = [TOKENS[end - size : end] for size, end in zip(sizes, itertools.accumulate(sizes), strict=True)]
    return np.concatenate([small_models.feed(model, cache, (slot, part))[0] for part in parts])


def test_float32(family: tuple[Path, Floats]) -> None:
    folder, theirs = family
    np.testing.assert_allclose(logits(folder, "float32"), theirs, atol=1e-4, rtol=1e-4)


def test_float32_token_by_token(family: tuple[Path, Floats]) -> None:
    folder, theirs = family
    np.testing.assert_allclose(logits(folder, "float32", (40, 1, 1, 5, 53)), theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("dtype", "error", "agreement"), [("bfloat16", 0.05, 0.85), ("int8", 0.1, 0.75)])
def test_reduced_precision(family: tuple[Path, Floats], dtype: str, error: float, agreement: float) -> None:
    folder, theirs = family
    ours = logits(folder, dtype)
    assert float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)) < error
    assert float(np.mean(ours.argmax(-1) == theirs.argmax(-1))) >= agreement


def test_only_the_rows_asked_for() -> None:
    model = small_models.llama()
    tokens = small_models.ids(12)

    def run(rows: list[int] | None) -> tuple[Floats, Floats]:
        cache = model.new_cache(CacheSpec(max_seq_len=64))
        cache.extend(slot := cache.allocate(), 12)
        out = model.forward(ForwardBatch(tokens, range(12), (Span(slot, 0, 12),), rows), cache)
        return host(out.logits), host(out.hidden)

    everything, hidden = run(None)
    assert everything.shape == (12, 64)
    assert hidden.shape == (12, 48)
    for rows in ([11], [0, 5, 11], [7, 3]):
        some, their_hidden = run(rows)
        assert small_models.identical(some, everything[rows])
        assert small_models.identical(their_hidden, hidden[rows])
