"""What a loaded model makes of a file's types: as stored, or rounded once to the dtype that was asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType

from outrider.config import DTypeName
from outrider.models.base import LoadedModel
from outrider.models.factory import make_model
from outrider.native.library import library
from outrider.weights.gguf.reader import open_gguf
from tests.weights.files import write_gguf

pytestmark = pytest.mark.skipif(library() is None, reason="no native library")

F32, F16, Q8_0, Q4_1 = (getattr(GGMLQuantizationType, kind) for kind in ("F32", "F16", "Q8_0", "Q4_1"))
IDS = np.array([3, 0, 7])


def loaded(path: Path, dtype: DTypeName) -> LoadedModel:
    checkpoint = open_gguf(path)
    return make_model(checkpoint.config, checkpoint.stored, quantised=checkpoint.quantised, dtype=dtype)


@pytest.mark.parametrize("tied", [False, True])
def test_float32_keeps_every_bit_of_a_float_file(tied: bool, tmp_path: Path) -> None:
    weights = write_gguf(tmp_path / "m.gguf", "qwen2", tie_word_embeddings=tied)
    embedding = weights["model.embed_tokens.weight"]
    assert not torch.equal(embedding, embedding.bfloat16().float())  # or the test would say nothing
    assert np.array_equal(loaded(tmp_path / "m.gguf", "float32").embed(IDS), embedding[IDS].numpy())


def test_bfloat16_is_rounded_to_once(tmp_path: Path) -> None:
    weights = write_gguf(tmp_path / "m.gguf", "qwen2")
    expected = weights["model.embed_tokens.weight"][IDS].bfloat16().float().numpy()
    assert np.array_equal(loaded(tmp_path / "m.gguf", "bfloat16").embed(IDS), expected)


@pytest.mark.parametrize("embedding", [F32, F16])
def test_a_float_embedding_leaves_quantised_layers_as_they_are(embedding: GGMLQuantizationType, tmp_path: Path) -> None:
    """Then layers take what they take beside a quantised embedding, and their rounding is the file's own."""
    for name, kind in (("mixed", embedding), ("whole", Q4_1)):
        write_gguf(tmp_path / f"{name}.gguf", "qwen2", kind=Q4_1, embedding=kind, tie_word_embeddings=False)
    mixed, whole = (loaded(tmp_path / f"{name}.gguf", "auto") for name in ("mixed", "whole"))
    plain = loaded(tmp_path / "mixed.gguf", "bfloat16")
    assert (mixed.precision, plain.precision) == ("q4_1", "bfloat16")
    assert mixed.weight_bytes < plain.weight_bytes
    assert np.array_equal(mixed.lm_head_rows(IDS), whole.lm_head_rows(IDS))
    if embedding == F32:
        stored = open_gguf(tmp_path / "mixed.gguf").stored["model.embed_tokens.weight"].numbers()
        assert np.array_equal(mixed.embed(IDS), stored[IDS])  # it stays in the file
