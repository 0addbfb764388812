"""Gemma 4's assistant: its chains are transformers', and no output depends on them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outrider import LLM, SamplingParams, SpeculationParams
from outrider.cache import CacheSpec
from outrider.cli.check import check_model
from outrider.drafters.trained.assistant_files import find_assistant, read_assistant
from outrider.drafters.trained.native_assistant import NativeAssistant
from outrider.engine.memory_plan import row_bytes
from outrider.errors import ConfigError, IncompatibleDraftError, ModelFormatError
from outrider.models.batch import ForwardBatch, Span
from outrider.models.native_llama import NativeLlamaModel
from outrider.native.library import library
from outrider.weights.folder import open_checkpoint
from tests import small_models
from tests.tokenizer.vocabularies import sentencepiece
from tests.weights.gemma4s import CASES, build, build_assistant, write_assistant, write_gguf

pytestmark = pytest.mark.skipif(library() is None, reason="no native library")

TOKENS = small_models.ids(19, 277)  # within the window
FIRST = 41


def save(folder: Path, case: str) -> tuple[Any, Any]:
    """A model and its assistant, in folders side by side and in files side by side."""
    theirs = build(case)
    assistant = build_assistant(theirs)
    theirs.save_pretrained(folder / "m")
    assistant.save_pretrained(folder / "m-assistant")
    sentencepiece(folder / "m")
    write_gguf(folder / "m.gguf", theirs)
    write_assistant(folder / "m-assistant-Q8_0.gguf", assistant)
    return theirs, assistant


def their_chain(target: Any, assistant: Any, levels: int) -> tuple[list[int], list[np.ndarray[Any, Any]]]:
    """transformers' logits and states of a chain behind ``TOKENS`` and ``FIRST``."""
    with torch.inference_mode():
        out = target(torch.tensor([TOKENS]), output_hidden_states=True, return_shared_kv_states=True)
        state, token, tokens, logits = out.hidden_states[-1][:, -1:], FIRST, [], []
        for _ in range(levels):
            embedding = target.model.embed_tokens(torch.tensor([[token]]))
            made = assistant(
                inputs_embeds=torch.cat([embedding, state], dim=-1),
                position_ids=torch.tensor([[len(TOKENS)]]),
                shared_kv_states=out.shared_kv_states,
            )
            state, token = made.last_hidden_state, int(made.logits[0, 0].argmax())
            tokens.append(token)
            logits.append(made.logits[0, 0].numpy())
    return tokens, logits


@pytest.mark.parametrize("case", ["layer embeddings", "values that are keys"])
@pytest.mark.parametrize("name", ["m-assistant", "m-assistant-Q8_0.gguf"])
def test_a_chain_has_transformers_logits(case: str, name: str, tmp_path: Path) -> None:
    wanted, logits = their_chain(*save(tmp_path, case), 4)
    checkpoint = open_checkpoint(tmp_path / "m")
    target = NativeLlamaModel(checkpoint.config, checkpoint.stored, target="float32")
    cache = target.new_cache(CacheSpec(slots=2, max_seq_len=64))
    slot = cache.allocate()
    cache.extend(slot, len(TOKENS))
    batch = ForwardBatch(TOKENS, range(len(TOKENS)), (Span(slot, 0, len(TOKENS)),), None)
    hidden = target.forward(batch, cache).hidden
    runner = NativeAssistant(read_assistant(tmp_path / name, target), target, cache)
    state, token, tokens = hidden[-1:], FIRST, []
    before = [array.copy() for array in cache.pool.arrays]
    for expected in logits:
        state, found = runner.run([token], state, [slot], [len(TOKENS)])
        assert np.abs(found[0] - expected).max() < 2e-5 * np.abs(expected).max()
        token = int(found[0].argmax())
        tokens.append(token)
    assert tokens == wanted
    assert all(np.array_equal(a, b) for a, b in zip(before, cache.pool.arrays, strict=True))  # nothing is written


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    save(path, "layer embeddings")
    return path


@pytest.mark.parametrize("name", ["m", "m.gguf"])
@pytest.mark.parametrize("kv_cache", ["contiguous", "paged"])
def test_it_is_found_by_itself_and_changes_no_output(folder: Path, name: str, kv_cache: Any) -> None:
    llm = LLM(folder / name, threads=1, spec_length=3, max_seq_len=96, kv_cache=kv_cache, max_batch_size=4)
    assert llm.speculation.draft == "suffix,assistant"
    prompts = [small_models.ids(n, 200) for n in (5, 30, 41, 17, 30)]
    for temperature in (0.0, 0.9):
        params = SamplingParams(max_tokens=20, temperature=temperature, seed=3, ignore_eos=True)
        plain = [out.token_ids for out in llm.generate(prompts, params, speculation=SpeculationParams(draft="none"))]
        drafted = 0
        for tree in (None, (2, 2), "dynamic"):
            how = SpeculationParams(draft="assistant", tree=tree, spec_length=3)
            outs = llm.generate(prompts, params, speculation=how)
            assert [out.token_ids for out in outs] == plain
            assert all(out.stats.draft_error is None for out in outs)
            drafted += sum(out.stats.num_draft_tokens for out in outs)
        assert drafted > 0


@pytest.mark.parametrize("name", ["m", "m.gguf"])
def test_the_check_of_a_model_finds_it(folder: Path, name: str) -> None:
    facts = check_model(str(folder / name))
    model = LLM(folder / name, threads=1, draft="none", max_seq_len=96).model
    assert (facts["runs"], facts["draft"]) == ("native", "suffix,assistant")
    assert facts["cache_bytes_per_token"] == row_bytes(model)
    assert 0.8 * model.weight_bytes < facts["weight_bytes"] <= model.weight_bytes


def test_it_takes_no_cache(folder: Path) -> None:
    plan = LLM(folder / "m", threads=1, max_seq_len=64).memory_plan
    assert plan.draft_pool == 0 < plan.draft_weights


def test_one_of_another_model_is_left_alone(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shutil.copytree(folder / "m", tmp_path / "m")
    other = build_assistant(build("layer embeddings"))
    other.config.backbone_hidden_size = 32
    other.pre_projection, other.post_projection = torch.nn.Linear(64, 32, False), torch.nn.Linear(32, 32, False)
    other.save_pretrained(tmp_path / "m-assistant")
    llm = LLM(tmp_path / "m", threads=1, max_seq_len=64)
    assert llm.speculation.draft == "suffix"
    assert "is not used as an assistant" in caplog.text
    with pytest.raises(IncompatibleDraftError, match="use the assistant of this model"):
        LLM(tmp_path / "m", threads=1, draft="assistant")


def test_without_one_the_source_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "m", tmp_path / "m")
    assert find_assistant(str(tmp_path / "m")) is None
    with pytest.raises(ConfigError, match="lies no assistant"):
        LLM(tmp_path / "m", threads=1, draft="assistant")


def test_a_model_is_no_assistant(folder: Path) -> None:
    checkpoint = open_checkpoint(folder / "m")
    target = NativeLlamaModel(checkpoint.config, checkpoint.stored)
    for path in (folder / "m", folder / "m.gguf"):
        with pytest.raises(ModelFormatError, match="is no gemma4"):
            read_assistant(path, target)


def test_all_cases_are_known() -> None:
    assert {"layer embeddings", "values that are keys"} < CASES.keys()
