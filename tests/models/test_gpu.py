"""On a CUDA device: the same model as on the CPU, up to rounding, and an engine that runs to its end."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import torch

from outrider import LLM, SamplingParams
from outrider.cache import CacheSpec
from outrider.checkpoints.loader import load_model
from outrider.config import ModelOptions
from tests import tiny
from tests.whole import model_folder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def test_logits_agree_with_the_cpu(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    logits = {}
    for device in ("cpu", "cuda"):
        model = load_model(folder, ModelOptions(dtype="float32", device=device))
        cache = model.new_cache(CacheSpec(max_seq_len=128))
        logits[device] = tiny.feed(model, cache, (cache.allocate(), [5, 9, 30, 7, 7, 61]))[0].cpu()
    assert torch.allclose(logits["cpu"], logits["cuda"], atol=1e-4)


@pytest.mark.parametrize("kv_cache", ["contiguous", "paged"])
def test_the_engine_runs_with_drafts(tmp_path: Path, kv_cache: Literal["contiguous", "paged"]) -> None:
    folder = str(model_folder(tmp_path / "model"))
    llm = LLM(folder, draft_model=folder, device="cuda", dtype="float32", kv_cache=kv_cache)
    outputs = llm.generate(["hello", "the world"], SamplingParams(max_tokens=20, ignore_eos=True))
    assert [len(o.token_ids) for o in outputs] == [20, 20]
    assert all((o.stats.mean_acceptance_length or 0) > 2 for o in outputs)
    llm.engine.cache.check()
