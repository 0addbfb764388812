"""A draft head behind the model's layers drafts as transformers' does, and changes no answer, in both formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider import LLM, SamplingParams
from outrider.cache import CacheSpec
from outrider.config import ModelOptions
from outrider.drafters.trained.mtp_head import mtp_head
from outrider.drafters.trained.native_mtp import NativeMtp
from outrider.models.batch import ForwardBatch, Span
from outrider.models.native_llama import NativeLlamaModel
from outrider.native.library import library
from outrider.weights.hub.catalog import resolve
from outrider.weights.loader import load_model
from tests import small_models
from tests.drafters.mtp_models import Reference
from tests.drafters.nextn_models import build, save, write_glm4moe
from tests.tokenizer.vocabularies import sentencepiece

pytestmark = pytest.mark.skipif(library() is None, reason="no native library")

TEXT = small_models.ids(12, 277)


def in_doubles(made: Reference) -> Reference:
    for part in (made.model, made.head):
        part.double()
    made.head.tie_with_main_model(made.model)
    return made


def features(model: NativeLlamaModel) -> Any:
    """The residual stream behind the last layer [n, d]."""
    cache = model.new_cache(CacheSpec(max_seq_len=64))
    slot = cache.allocate()
    cache.extend(slot, len(TEXT))
    batch = ForwardBatch(TEXT, range(len(TEXT)), (Span(slot, 0, len(TEXT)),), None, features=(3,))
    return model.forward(batch, cache).features


def check_levels(path: Path, reference: Reference) -> None:
    """The head's logits of four levels, each behind the best token of the one before, are transformers'."""
    model = load_model(resolve(str(path)), ModelOptions(dtype="float32", device="cpu"))
    assert isinstance(model, NativeLlamaModel)
    head = mtp_head(model)
    assert head is not None
    runner = NativeMtp(head, model, CacheSpec(max_seq_len=64))
    slot, rows, drafted = runner.cache.allocate(), len(TEXT) - 1, list[int]()
    runner.cache.extend(slot, rows)
    fed = runner.fuse(features(model)[:-1])
    tokens, positions, spans = TEXT[1:], [*range(rows)], [Span(slot, 0, rows)]
    for level in range(4):
        out, logits = runner.run(fed, tokens, positions, spans, [len(tokens) - 1])
        expected = reference.row(TEXT, drafted).numpy()
        assert np.abs(logits[0] - expected).max() <= 4e-6 * np.abs(expected).max()
        drafted.append(int(expected.argmax()))
        runner.cache.extend(slot, 1)
        fed, tokens, positions, spans = out[-1:], drafted[-1:], [rows + level], [Span(slot, rows + level, 1)]


def test_logits_of_a_head_on_latents_are_those_of_transformers(tmp_path: Path) -> None:
    made = build("deepseek_v3")
    save(made, tmp_path)
    check_levels(tmp_path, in_doubles(made))


def test_logits_and_answers_of_glm4_moe_in_both_formats(tmp_path: Path) -> None:
    made, params = build("glm4_moe"), SamplingParams(max_tokens=24)
    write_glm4moe(tmp_path / "m.gguf", save(made, sentencepiece(tmp_path)))
    in_doubles(made)
    for path in (tmp_path, tmp_path / "m.gguf"):
        check_levels(path, made)
        with LLM(str(path), draft="none") as plain, LLM(str(path), draft="mtp", spec_length=3) as drafting:
            wanted, found = (llm.generate([TEXT, TEXT[5:]], params) for llm in (plain, drafting))
        assert [answer.token_ids for answer in found] == [answer.token_ids for answer in wanted]
        assert all(answer.stats.draft_error is None for answer in found)
        assert sum(answer.stats.num_draft_tokens for answer in found) > 20
