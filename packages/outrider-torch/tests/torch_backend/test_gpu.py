"""On a CUDA device: the same model as on the CPU, up to rounding, and an engine that runs to its end."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from outrider import LLM, SamplingParams
from outrider.cache import CacheSpec
from outrider.config import ModelOptions
from outrider.weights.loader import load_model
from outrider_torch.models.llama import LlamaModel
from tests import small_models
from tests.hybrid.sequence import SlotSequence
from tests.model_folders import model_folder
from tests.paths import LAB
from tests.weights.hybrids import CASES, build, save

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
        logits[device] = small_models.feed(model, cache, (cache.allocate(), [5, 9, 30, 7, 7, 61]))[0]
    assert np.allclose(logits["cpu"], logits["cuda"], atol=1e-4)


@pytest.mark.parametrize("arch", CASES)
def test_recurrent_layers_agree_with_the_cpu(arch: str, tmp_path: Path) -> None:
    """A prompt, a draft of which half is dropped, and a row behind it."""
    save(build(arch), tmp_path)
    logits = {}
    for device in ("cpu", "cuda"):
        model = load_model(tmp_path, ModelOptions(dtype="float32", device=device, implementation="torch"))
        sequence = SlotSequence(model)
        parts = [sequence.feed([5, 9, 30, 7, 7, 61]), sequence.feed([8, 4, 11, 60], 1)]
        sequence.roll_back(8)
        logits[device] = np.concatenate([*parts, sequence.feed([12])])
    assert np.allclose(logits["cpu"], logits["cuda"], rtol=1e-4, atol=1e-4 * np.abs(logits["cpu"]).max())


@pytest.mark.parametrize("kv_cache", ["contiguous", "paged"])
def test_the_engine_runs_with_drafts(tmp_path: Path, kv_cache: Literal["contiguous", "paged"]) -> None:
    folder = str(model_folder(tmp_path / "model"))
    llm = LLM(folder, draft_model=folder, device="cuda", dtype="float32", kv_cache=kv_cache)
    outputs = llm.generate(["hello", "the world"], SamplingParams(max_tokens=20, ignore_eos=True))
    assert [len(o.token_ids) for o in outputs] == [20, 20]
    assert all((o.stats.mean_acceptance_length or 0) > 2 for o in outputs)
    llm.engine.cache.check()


@pytest.mark.parametrize("source", ["eagle", "medusa"])
def test_trained_heads_draft_there(source: str) -> None:
    lab = LAB
    llm = LLM(str(lab / "target"), draft=source, heads=(str(lab / source),), spec_length=3, device="cuda")
    out = llm.generate(["ROMEO:\n"], SamplingParams(max_tokens=48, ignore_eos=True))[0]
    assert out.stats.draft_error is None
    assert (out.stats.mean_acceptance_length or 0) > 1.1


def test_hundreds_of_sequences_decode_in_fixed_shapes(tmp_path: Path) -> None:
    folder = str(model_folder(tmp_path / "model"))
    llm = LLM(folder, draft="none", device="cuda", kv_cache="paged", max_batch_size=300)
    prompts = [[5 + i % 90, *range(9, 10 + i % 60)] for i in range(400)]
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    sampled = SamplingParams(max_tokens=40, temperature=0.7, top_p=0.9, seed=1, ignore_eos=True)
    outputs = llm.generate(prompts, [sampled if i % 2 else params for i in range(400)])
    assert [len(o.token_ids) for o in outputs] == [40] * 400
    assert isinstance(llm.model, LlamaModel)
    assert llm.model._fixed is not None
    assert not llm.model._fixed.failed
    assert any(bucket.sequences >= 256 for bucket in llm.model._fixed.captured(llm.engine.cache))
    llm.engine.cache.check()
