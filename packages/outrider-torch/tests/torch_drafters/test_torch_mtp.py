"""A model's own draft head on torch: transformers' logits, and drafts that change no token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from outrider import LLM, SamplingParams, SpeculationParams
from outrider.cache import CacheSpec
from outrider.drafters.trained.mtp_head import mtp_head
from outrider.models.batch import ForwardBatch, Span
from outrider.models.factory import make_model
from outrider_torch.drafters.mtp import TorchMtp
from outrider_torch.models.llama import LlamaModel
from tests import small_models
from tests.drafters.mtp_models import FAMILIES, dimensions, reference, tensors
from tests.tokenizer.vocabularies import byte_level
from tests.weights.hybrids import build, converted, save, write_gguf

TEXT = small_models.ids(12)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_every_level_are_those_of_transformers(family: str) -> None:
    made = tensors(reference(family))
    target = make_model(dimensions(family), made, dtype="float32", implementation="torch")
    assert isinstance(target, LlamaModel)
    head, rows = mtp_head(target), len(TEXT) - 1
    assert head is not None
    cache = target.new_cache(CacheSpec(max_seq_len=64))
    slot = cache.allocate()
    cache.extend(slot, rows)
    read = ForwardBatch(TEXT[:-1], range(rows), (Span(slot, 0, rows),), None, features=(2,))
    runner = TorchMtp(head, target, CacheSpec(max_seq_len=64))
    fed = runner.fuse(target.forward(read, cache).features)
    own, path = runner.cache.allocate(), list[int]()
    runner.cache.extend(own, rows)
    tokens, positions, spans = TEXT[1:], [*range(rows)], [Span(own, 0, rows)]
    for level in range(4):
        out, logits = runner.run(fed, tokens, positions, spans, [len(tokens) - 1])
        expected = reference(family).row(TEXT, path)
        assert float((logits[0] - expected).abs().max()) <= 1e-5 * float(expected.abs().max())
        path.append(int(expected.argmax()))
        runner.cache.extend(own, 1)
        fed, tokens, positions, spans = out[-1:], path[-1:], [rows + level], [Span(own, rows + level, 1)]


@pytest.mark.parametrize("name", ["headed.gguf", pytest.param("headed", marks=pytest.mark.slow)])
def test_a_head_in_the_files_drafts_by_default(name: str, tmp_path: Path) -> None:
    """Greedy and sampled, chains and trees, alone and in a batch."""
    own = save(build("qwen35moe"), tmp_path / "headed")
    byte_level(tmp_path / "headed")
    write_gguf(tmp_path / "headed.gguf", "qwen35moe", converted("qwen35moe", own))
    llm = LLM(tmp_path / name, implementation="torch", dtype="float32", threads=1, spec_length=3, max_seq_len=64)
    assert llm.speculation.draft == "suffix,mtp"
    prompts = [[5, 9, 14, 5, 9, 3], [7, 7, 8]]
    greedy = SamplingParams(max_tokens=8, ignore_eos=True)
    for params in (greedy, replace(greedy, temperature=0.8, seed=3)):
        plain = [llm.generate([prompt], params, speculation=None)[0].token_ids for prompt in prompts]
        for tree in (None, (2, 2)):
            speculation = SpeculationParams(draft="mtp", tree=tree, spec_length=3)
            outputs = llm.generate(prompts, params, speculation=speculation)
            assert [output.token_ids for output in outputs] == plain
            assert [output.stats.draft_error for output in outputs] == [None] * 2
            assert all(output.stats.num_draft_tokens > 0 for output in outputs)
