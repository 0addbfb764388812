"""Every family beside transformers: logits within rounding, from files that transformers wrote."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outrider.cache import CacheSpec
from outrider.config import ModelOptions
from outrider.models.base import LoadedModel
from outrider.verify.arrays import Floats
from outrider.weights.families import FAMILIES
from outrider.weights.families.elsewhere import NATIVE_ONLY
from outrider.weights.folder import open_checkpoint
from outrider.weights.loader import load_model
from outrider_torch.models.llama import LlamaModel
from outrider_torch.models.stored import torch_tensors
from tests import small_models
from tests.families import MEMBERS, VOCAB, build

TOKENS = small_models.ids(100, VOCAB)


@pytest.fixture(scope="module", params=MEMBERS)
def member(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Floats]:
    """A saved model and its logits [100, vocab] of ``TOKENS``."""
    theirs = build(request.param)
    folder = tmp_path_factory.mktemp("member")
    theirs.save_pretrained(folder)
    with torch.inference_mode():
        return folder, theirs(torch.tensor([TOKENS])).logits[0].numpy()


def on_torch(folder: Path) -> LlamaModel:
    checkpoint = open_checkpoint(folder)
    return LlamaModel(checkpoint.config, torch_tensors(checkpoint), dtype=torch.float32)


def logits(model: LoadedModel, sizes: tuple[int, ...] = (100,)) -> Floats:
    cache = model.new_cache(CacheSpec(max_seq_len=128))
    slot, ends = cache.allocate(), list(itertools.accumulate(sizes))
    parts = [TOKENS[end - size : end] for size, end in zip(sizes, ends, strict=True)]
    return np.concatenate([small_models.feed(model, cache, (slot, part))[0] for part in parts])


def close(ours: Floats, theirs: Floats) -> None:
    np.testing.assert_allclose(ours, theirs, atol=2e-4, rtol=2e-4)
    assert np.array_equal(ours.argmax(-1), theirs.argmax(-1))


def test_torch(member: tuple[Path, Floats]) -> None:
    model = on_torch(member[0])
    whole = logits(model)
    close(whole, member[1])
    assert small_models.identical(logits(model, (40, 1, 1, 5, 53)), whole)


def test_float32(member: tuple[Path, Floats]) -> None:
    """The native library, where it is there."""
    model = load_model(member[0], ModelOptions(dtype="float32", device="cpu"))
    whole = logits(model)
    close(whole, member[1])
    assert small_models.identical(logits(model, (40, 1, 1, 5, 53)), whole)


@pytest.mark.parametrize(("dtype", "error"), [("bfloat16", 0.08), ("int8", 0.12)])
def test_reduced_precision(member: tuple[Path, Floats], dtype: Any, error: float) -> None:
    ours, theirs = logits(load_model(member[0], ModelOptions(dtype=dtype, device="cpu"))), member[1]
    assert float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)) < error


def test_every_family_has_a_member() -> None:
    others = {"llama", "mistral", "qwen2", "qwen3"}  # see test_parity
    states = {"qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "lfm2", "lfm2_moe", "granitemoehybrid"}  # see weights
    states.add("nemotron_h")
    elsewhere = others | states | {"deepseek_v2", "deepseek_v3", "glm4_moe_lite", "mistral4"} | NATIVE_ONLY
    assert FAMILIES.keys() - elsewhere == {build(name).config.model_type for name in MEMBERS}
