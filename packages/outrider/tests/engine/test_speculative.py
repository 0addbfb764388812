"""The phase's acceptance list by name: each test states one promise of speculative decoding in the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chisquare

from outrider import LLM, SamplingParams, SpeculationParams
from outrider.cache import CacheSpec
from outrider.cache.pool import itemsize
from outrider.config import engine_config
from outrider.errors import ConfigError, IncompatibleDraftError
from outrider.models.toy import TableModel, sequence_probs
from tests.model_folders import model_folder, other_vocabulary
from tests.small_engines import engine, generate, request, run

TARGET = TableModel.random(7, 2, seed=3)
DRAFT = TableModel(TARGET.table + 0.8 * TableModel.random(7, 2, seed=4).table)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("models") / "target")


@pytest.mark.parametrize("verifier", ["matching", "rejection"])
def test_accept_reject_greedy(verifier: str) -> None:
    served = engine(TARGET, draft=DRAFT)
    for first in range(7):
        plain = generate(served, [first, 1], SamplingParams(max_tokens=30))
        drafted = generate(served, [first, 1], SamplingParams(max_tokens=30), draft="model", verifier=verifier)
        assert drafted == plain


@pytest.mark.slow
def test_accept_reject_sampling() -> None:
    """Rejection through the engine follows the exact distribution of sequences; a skewed one is told apart.

    The fast suite has fewer samples, of every source and verifier (``exactness/test_matrix.py``).
    """
    params = SamplingParams(temperature=0.9, top_k=5, max_tokens=2)
    served = engine(TARGET, draft=DRAFT, slots=50)
    requests = [
        request([2, 4], SamplingParams(temperature=0.9, top_k=5, max_tokens=2, seed=i), id=str(i), draft="model",
                verifier="rejection", spec_length=2)
        for i in range(2500)
    ]  # fmt: skip
    run(served, *requests)
    counts = np.zeros(49)
    for r in requests:
        counts[r.output[0] * 7 + r.output[1]] += 1
    expected = sequence_probs(TARGET.table, params, [2, 4], 2) * len(requests)
    likely = expected >= 5
    assert counts[expected == 0].sum() == 0

    def p_value(observed: NDArray[np.float64], wanted: NDArray[np.float64]) -> float:
        rest = [float(observed[~likely].sum())], [float(wanted[~likely].sum())]
        return float(chisquare(observed[likely].tolist() + rest[0], wanted[likely].tolist() + rest[1]).pvalue)

    assert p_value(counts, expected) > 1e-3
    skewed = sequence_probs(DRAFT.table, params, [2, 4], 2) * len(requests)
    assert p_value(skewed * (expected.sum() / skewed.sum()), expected) < 1e-6
    assert (
        0 < sum(r.stats.num_accepted_draft_tokens for r in requests) < sum(r.stats.num_draft_tokens for r in requests)
    )


def test_kv_cache_rollback() -> None:
    """Exactly the blocks from ceil(length / block_size) on are freed; the partial last one and shared ones stay."""
    cache = TARGET.new_cache(CacheSpec(slots=2, max_seq_len=64, kind="paged", tokens=64, block_size=4))
    slot = cache.allocate()
    cache.extend(slot, 18)  # 5 blocks
    assert cache.free_tokens() == 44
    for length, free in ((17, 44), (16, 48), (9, 52), (8, 56), (1, 60), (0, 64)):
        cache.truncate_to(slot, length)
        assert (cache.length(slot), cache.free_tokens()) == (length, free)
        cache.check()
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    cache.extend(slot, 9)
    cache.publish_prefix(slot, tokens)
    twin = cache.allocate(tokens)
    assert cache.length(twin) == 8
    cache.truncate_to(twin, 0)  # lets go of shared blocks without freeing them
    assert (cache.length(slot), cache.free_tokens()) == (9, 52)
    cache.check()


def test_draft_target_tokenizer_mismatch(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(IncompatibleDraftError, match=r"target .*target: .* tokens, .*draft other: .* tokens"):
        LLM(str(folder), draft_model=str(other_vocabulary(tmp_path / "other")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"use_speculative_decoding": True, "draft": "none"}, "needs a source of drafts"),
        ({"use_speculative_decoding": False, "draft": "ngram"}, "contradicts draft='ngram'"),
        ({"draft": "model"}, "needs a draft model"),
        ({"draft": "ngram", "draft_model": "x"}, "would not be used"),
        ({"draft": "telepathy"}, "telepathy"),
        ({"spec_length": 0}, "spec_length=0"),
        ({"kv_cache": "heap"}, "kv_cache='heap'"),
        ({"max_batch_size": 0}, "max_batch_size=0"),
        ({"max_batched_tokens": 4, "max_batch_size": 8}, "max_batched_tokens=4 is less than max_batch_size=8"),
        ({"kv_tokens": 100}, "is for kv_cache='paged'"),
        ({"kv_tokens": -1, "kv_cache": "paged"}, "kv_tokens=-1"),
        ({"max_seq_len": 1}, "max_seq_len=1"),
        ({"dtype": "float8"}, "dtype='float8'"),
        ({"draft_dtype": "int3"}, "dtype='int3'"),
        ({"verifier": "hope"}, "verifier='hope'"),
        ({"threads": 0}, "threads=0"),
    ],
)
def test_config_validation(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        engine_config("m", **options)
    assert isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)


def test_memory_is_planned_before_the_first_request(folder: Path) -> None:
    llm = LLM(str(folder), draft_model=str(folder), max_batch_size=2, threads=1)
    plan, size = llm.memory_plan, itemsize(llm.model.cache_dtype)
    assert plan.kv_tokens == 2 * 128
    assert plan.target_pool == plan.draft_pool == 2 * 128 * 2 * 2 * 2 * 16 * size  # k and v, layers, heads, dims
    assert plan.total == sum(
        (plan.target_weights, plan.draft_weights, plan.target_pool, plan.draft_pool, plan.activations)
    )
    with pytest.raises(ConfigError, match="is for kv_cache='paged'"):
        LLM(str(folder), kv_tokens=10)
    with pytest.raises(Exception, match=r"a cache of 100 tokens cannot hold.*max_seq_len=128"):
        LLM(str(folder), kv_cache="paged", kv_tokens=100)
    with pytest.raises(Exception, match=r"kv_tokens=1000000000000 needs .* GB"):
        LLM(str(folder), kv_cache="paged", kv_tokens=10**12)


def test_speculative_greedy_parity(folder: Path) -> None:
    llm = LLM(str(folder), draft_model=str(folder), draft_dtype="int8", threads=1)
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    for prompt in ("hello", "the world and", "12 and 34 of hello", "world world world", "of the"):
        plain = llm.generate(prompt, params, speculation=SpeculationParams(draft="none"))
        assert llm.generate(prompt, params).token_ids == plain.token_ids


def test_speculative_e2e(folder: Path) -> None:
    llm = LLM(str(folder), draft_model=str(folder), draft_dtype="int8", threads=1, spec_length=4)
    output = llm.generate("hello", SamplingParams(max_tokens=40, temperature=0.8, seed=2, ignore_eos=True))
    assert output.text
    assert output.steps[-1].acceptance_rate == output.stats.draft_acceptance_rate
    assert 0 < (output.stats.draft_acceptance_rate or 0) <= 1


@pytest.mark.parametrize("kv_cache", ["contiguous", "paged"])
def test_speculative_with_continuous_batching(folder: Path, kv_cache: Literal["contiguous", "paged"]) -> None:
    llm = LLM(str(folder), draft_model=str(folder), draft_dtype="int8", kv_cache=kv_cache, max_batch_size=3, threads=1)
    prompts = [f"{word} {n}" for n in range(3) for word in ("hello", "world", "the")]
    params = [SamplingParams(max_tokens=12 + i, temperature=i % 2, seed=i, ignore_eos=True) for i in range(9)]
    sources = [SpeculationParams(draft=("none", "ngram", "model")[i % 3], spec_length=1 + i % 4) for i in range(9)]
    together = llm.generate(prompts, params, speculation=sources)
    for prompt, own, output in zip(prompts, params, together, strict=True):
        assert output.token_ids == llm.generate([prompt], own, speculation=SpeculationParams(draft="none"))[0].token_ids
    llm.engine.cache.check()


@pytest.mark.usefixtures("small_blocks")
def test_n_outputs_of_one_prompt(folder: Path) -> None:
    llm = LLM(str(folder), draft="none", kv_cache="paged", threads=1)
    params = SamplingParams(n=3, temperature=1.0, seed=7, max_tokens=10, ignore_eos=True)
    outputs = llm.generate(["hello world and the world"], params)
    assert [o.seed for o in outputs] == [7, 8, 9]
    for i, output in enumerate(outputs):
        single = SamplingParams(temperature=1.0, seed=7 + i, max_tokens=10, ignore_eos=True)
        assert llm.generate("hello world and the world", single).token_ids == output.token_ids
    assert outputs[1].stats.cached_prompt_tokens >= 4


def test_prompt_logprobs_equal_those_of_scoring_the_prompt(folder: Path) -> None:
    llm = LLM(str(folder), draft="none", max_batched_tokens=9, threads=1)  # read in chunks
    ids = [5, 9, 20, 31, 7, 7, 60, 61, 3, 44, 10, 11]
    params = SamplingParams(prompt_logprobs=1, max_tokens=3, ignore_eos=True)
    output = llm.generate([ids], params)[0]
    assert len(output.prompt_logprobs) == len(ids) - 1
    assert llm.generate([ids], params)[0].prompt_logprobs == output.prompt_logprobs  # with that prompt in the cache
    scored = SamplingParams(logprobs=1, max_tokens=1, ignore_eos=True)
    for i in range(1, len(ids)):
        step = llm.generate([ids[:i]], scored)[0].steps[0]
        best = max(step.logprobs.values()) if step.logprobs else None
        assert best == max(output.prompt_logprobs[i - 1].values())
        assert ids[i] in output.prompt_logprobs[i - 1]


@pytest.mark.usefixtures("small_blocks")
def test_sequences_of_one_prompt_share_its_logprobs(folder: Path) -> None:
    llm = LLM(str(folder), draft="none", kv_cache="paged", threads=1)
    ids = [5, 9, 20, 31, 7, 7, 60, 61, 3, 44, 10, 11]
    params = SamplingParams(n=3, prompt_logprobs=2, max_tokens=2, ignore_eos=True, seed=1)
    first, *others = llm.generate([ids], params)
    assert len(others) == 2
    for other in others:
        assert other.prompt_logprobs == first.prompt_logprobs
        assert other.stats.cached_prompt_tokens >= 8  # it was read and scored once


def test_rollouts_of_one_prompt_read_it_once(folder: Path) -> None:
    """Also where the prompt is shorter than a block of the cache, and there are more rollouts than places."""
    llm, ids = LLM(str(folder), draft="none", max_batch_size=4, threads=1), [5, 9, 20, 31, 7, 7, 60]
    params = SamplingParams(n=12, temperature=1.0, seed=1, max_tokens=4, ignore_eos=True)
    first, *others = llm.generate([ids], params)
    assert first.stats.cached_prompt_tokens == 0
    assert [other.stats.cached_prompt_tokens for other in others] == [len(ids) - 1] * 11
    for i in (1, 11):
        alone = SamplingParams(temperature=1.0, seed=1 + i, max_tokens=4, ignore_eos=True)
        assert llm.generate([ids], alone)[0].token_ids == others[i - 1].token_ids


@pytest.mark.parametrize("source", ["none", "model"])
def test_logprobs_know_nothing_of_the_head_s_padding(source: str) -> None:
    """A model whose head is wider than its vocabulary: padding is neither named nor given probability."""
    params = SamplingParams(max_tokens=6, logprobs=7, prompt_logprobs=7, seed=1)
    r = request([1, 2, 3], params, draft=source)
    events = run(engine(TARGET, vocab_size=4), r)["r"]
    rows = [*(event.logprobs or {} for event in events), *r.prompt_report.logprobs]
    assert len(rows) == 6 + 2
    for row in rows:
        assert set(row) == {0, 1, 2, 3}
        assert sum(np.exp(list(row.values()))) == pytest.approx(1.0, abs=1e-5)
