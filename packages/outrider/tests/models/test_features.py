"""What trained heads read of the target: inner results of every token, its embeddings and its LM head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from outrider.cache import CacheSpec
from outrider.models.base import LoadedModel
from outrider.models.batch import ForwardBatch, ForwardOutput, Span
from outrider.verify.arrays import Floats, host
from outrider.verify.tree import ancestor_mask, depths
from tests import small_models
from tests.arrays import randn

SPEC = CacheSpec(slots=2, max_seq_len=64)
PARENTS = (-1, -1, 0, 0, 1)


def given(model: LoadedModel, numbers: Sequence[int] | Floats) -> Any:
    """As arrays of the model's kind."""
    array = np.asarray(numbers)
    if isinstance(model.dtype, str):
        return array
    tensor = torch.from_numpy(array)
    return tensor.to(model.dtype) if tensor.is_floating_point() else tensor


def forward(model: LoadedModel, tokens: list[int], **more: object) -> ForwardOutput:
    cache = model.new_cache(SPEC)
    slot = cache.allocate()
    cache.extend(slot, len(tokens))
    span = Span(slot, 0, len(tokens))
    batch = ForwardBatch(tokens, range(len(tokens)), (span,), None)
    return model.forward(replace(batch, **more), cache)  # type: ignore[arg-type]


def tree_run(model: LoadedModel, features: tuple[int, ...]) -> ForwardOutput:
    """A chain of 3 in one slot, and a tree in the other."""
    cache = model.new_cache(SPEC)
    spans, ids, positions = [], small_models.ids(8), [*range(3), *depths(PARENTS)]
    for count, mask in ((3, None), (5, ancestor_mask(PARENTS))):
        slot = cache.allocate()
        cache.extend(slot, count)
        spans.append(Span(slot, 0, count, mask))
    batch = ForwardBatch(ids, positions, tuple(spans), [2, 4], features=features)
    return model.forward(batch, cache)


@pytest.mark.parametrize("kind", ["bf16", "fp32", "int8"])
@pytest.mark.parametrize("tokens", [1, 3, 9])
def test_features_are_the_residual_stream_and_change_nothing(kind: str, tokens: int) -> None:
    model, ids = small_models.llama(kind), small_models.ids(tokens)
    plain = forward(model, ids)
    out = forward(model, ids, features=(0, 1, 2))
    assert plain.features is None
    assert small_models.identical(plain.logits, out.logits)
    assert out.features is not None
    first, middle, last = (out.features[:, 48 * i : 48 * (i + 1)] for i in range(3))
    assert first.shape == (tokens, 48)
    assert np.array_equal(host(first), host(model.embed(given(model, ids))))
    assert small_models.identical(model.final_norm(last), out.hidden)
    assert small_models.identical(model.compute_logits(model.final_norm(last)), out.logits)
    assert small_models.identical(model.final_norm(middle), forward(model, ids, layers=1).hidden)


def test_features_of_a_tree_come_for_every_token() -> None:
    model = small_models.llama()
    out = tree_run(model, (2,))
    assert out.features is not None
    assert out.features.shape == (8, 48)
    assert small_models.identical(model.final_norm(out.features)[[2, 4]], out.hidden)
    assert small_models.identical(tree_run(model, ()).logits, out.logits)


def test_inputs_take_the_place_of_embeddings() -> None:
    model, ids = small_models.llama(), small_models.ids(5)
    inputs = model.embed(given(model, ids))
    assert small_models.identical(forward(model, [0] * 5, inputs=inputs).logits, forward(model, ids).logits)


@pytest.mark.parametrize("kind", ["bf16", "fp32", "int8"])
@pytest.mark.parametrize("tied", [True, False])
def test_head_rows_are_those_of_the_head(kind: str, tied: bool) -> None:
    model = small_models.llama(kind, tie_embeddings=tied)
    ids, hidden = [5, 63, 0], randn(4, 48)
    rows = host(model.lm_head_rows(given(model, ids)))
    assert rows.shape == (3, 48)
    logits = host(model.compute_logits(given(model, hidden)))
    assert np.allclose(logits[:, ids], hidden @ rows.T, atol=0.3, rtol=0.05)
    if kind != "int8":
        weight = small_models.tensors(model.config)["model.embed_tokens.weight" if tied else "lm_head.weight"]
        expected = weight[ids].to(torch.bfloat16 if kind == "bf16" else torch.float32).float()
        assert np.array_equal(rows, expected.numpy())
