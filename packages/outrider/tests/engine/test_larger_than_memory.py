"""Weights that are mapped from a file and do not fit into memory: the caches' share, and one line on what it costs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from outrider import LLM, SamplingParams
from outrider.cache import CacheSpec
from outrider.config import EngineConfig, ModelOptions
from outrider.engine.memory_plan import plan_memory
from outrider.loading import memory as loading_memory
from outrider.native import packed
from outrider.native.library import library
from outrider.weights.loader import load_model
from tests.tokenizer.vocabularies import sentencepiece
from tests.weights.files import write_folder

pytestmark = pytest.mark.skipif(library() is None, reason="no native library")
SENTENCE = "GB more than the"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of 19 MB."""
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(packed.VARIABLE, "map")
    write_folder(tmp_path / "m", hidden_size=512, intermediate_size=2048, num_hidden_layers=3)
    sentencepiece(tmp_path / "m")
    return tmp_path / "m"


def answer(folder: Path, **options: Any) -> tuple[int, ...]:
    with LLM(folder, max_seq_len=64, max_batch_size=1, max_batched_tokens=16, **options) as llm:
        return tuple(llm.generate("a", SamplingParams(max_tokens=4)).token_ids)


def test_one_line_says_what_it_costs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = answer(folder, draft="none")
    assert SENTENCE not in caplog.text
    monkeypatch.setattr(loading_memory, "available_bytes", lambda device: 16_000_000)
    with caplog.at_level(logging.WARNING):
        assert answer(folder, draft="none") == expected
    lines = [record.message for record in caplog.records if SENTENCE in record.message]
    assert len(lines) == 1
    assert "GB/s. Use a smaller type of weights, or a smaller max_seq_len" in lines[0]


def test_caches_leave_mapped_weights_their_memory(folder: Path) -> None:
    model = load_model(folder, ModelOptions(device="cpu", max_seq_len=64))
    config = EngineConfig(model="m", max_batch_size=64, max_batched_tokens=64)
    plans = [plan_memory(model, (), config, 40_000_000, mapped=mapped) for mapped in (0, 20_000_000, 39_000_000)]
    tokens = [plan.kv_tokens for plan in plans]
    assert tokens[0] > tokens[1] > tokens[2] >= 64
    assert [plan.beyond > 0 for plan in plans] == [False, False, True]
    assert isinstance(plans[2].cache_spec(config, 64), CacheSpec)
