"""``LLM`` on a folder whose model attends to latents: the same answers with and without drafts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider import LLM, SamplingParams, SpeculationParams
from outrider.native.library import library
from tests.tokenizer.vocabularies import sentencepiece
from tests.weights.latents import build, save

pytestmark = pytest.mark.skipif(library() is None, reason="no native library")

PLAIN = SpeculationParams(draft="none")
DRAFTS = (
    SpeculationParams(draft="suffix"),
    SpeculationParams(draft="mtp", spec_length=3),
    SpeculationParams(draft="suffix,mtp", spec_length=5),
    SpeculationParams(draft="mtp", tree=(2, 2, 1)),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("latent")
    save(build("deepseek_v3"), made, head=True)
    return sentencepiece(made)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param({"kv_cache": "contiguous"}, id="contiguous"),
        pytest.param({"kv_cache": "paged", "kv_tokens": 288}, id="paged"),
        pytest.param({"kv_cache_dtype": "int8"}, id="int8"),
        pytest.param({"implementation": "torch"}, id="torch", marks=pytest.mark.slow),
    ],
)
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The paged cache is too small for a batch of long requests: some are preempted."""
    found: dict[str, Any] = request.param
    return found


@pytest.fixture(scope="module")
def llm(options: dict[str, Any], folder: Path) -> Iterator[LLM]:
    with LLM(folder, draft="suffix,mtp", max_batch_size=8, **options) as made:
        yield made


def requests(seed: int, count: int) -> list[tuple[list[int], SamplingParams]]:
    """Prompts with common beginnings, greedy and sampled."""
    rng = random.Random(seed)
    common = [[rng.randrange(3, 270) for _ in range(length)] for length in (5, 20, 40, 60)]
    made = []
    for _ in range(count):
        prompt = rng.choice(common) + [rng.randrange(3, 270) for _ in range(rng.choice([1, 1, 6]))]
        params = SamplingParams(
            max_tokens=rng.choice([1, 8, 24]), temperature=rng.choice([0.0, 0.0, 1.0]), seed=rng.choice([1, 2])
        )
        made.append((prompt, params))
    return made


def test_drafts_change_no_answer(llm: LLM, folder: Path, options: dict[str, Any]) -> None:
    work = requests(1, 40)
    with LLM(folder, draft="none", prefix_reuse=False, **{**options, "kv_tokens": None}) as alone:
        wanted = [tuple(alone.generate([prompt], params)[0].token_ids) for prompt, params in work]
    rng, at, drafted, accepted = random.Random(2), 0, 0, 0
    while at < len(work):
        size = rng.choice([1, 2, 4, 8])
        prompts, params = zip(*work[at : at + size], strict=True)
        speculation = [rng.choice((PLAIN, *DRAFTS)) for _ in prompts]
        answers = llm.generate(list(prompts), list(params), speculation=speculation)
        assert [tuple(answer.token_ids) for answer in answers] == wanted[at : at + size]
        drafted += sum(answer.stats.num_draft_tokens for answer in answers)
        accepted += sum(answer.stats.num_accepted_draft_tokens for answer in answers)
        assert all(answer.stats.draft_error is None for answer in answers)
        at += size
    assert drafted > 50
    assert accepted > 0


def test_a_prefix_is_reused(llm: LLM) -> None:
    rng = random.Random(7)
    prompt, params = [rng.randrange(3, 270) for _ in range(64)], SamplingParams(max_tokens=4)
    first, again = (llm.generate([prompt], params)[0] for _ in range(2))
    assert first.token_ids == again.token_ids
    assert again.stats.cached_prompt_tokens >= 48


def test_memory_is_planned_by_the_latents(llm: LLM, options: dict[str, Any]) -> None:
    plan = llm.memory_plan
    row = 40 + 8 if options.get("kv_cache_dtype") == "int8" else 80
    assert plan.target_pool == plan.kv_tokens * 3 * row
    assert plan.draft_pool == plan.kv_tokens * row
