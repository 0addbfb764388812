"""``LLM`` on a folder with recurrent layers: conversations, several outputs, and what is refused."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from outrider import LLM, SamplingParams, SpeculationParams
from outrider.errors import ConfigError
from outrider.native.library import library
from tests.tokenizer.vocabularies import sentencepiece
from tests.weights.hybrids import build, save

pytestmark = pytest.mark.skipif(library() is None, reason="no native library")
END = 2
PARAMS = SamplingParams(max_tokens=12, temperature=1.0, seed=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("hybrid")
    save(build("qwen35"), made, config={"max_position_embeddings": 1024})
    return sentencepiece(made)


@pytest.fixture(params=["contiguous", "paged"])
def llm(request: pytest.FixtureRequest, folder: Path) -> Iterator[LLM]:
    with LLM(folder, draft="mtp", kv_cache=request.param, max_batch_size=3) as made:
        yield made


def message(rng: random.Random, length: int) -> list[int]:
    return [*(rng.randrange(3, 250) for _ in range(length - 1)), END]


def plain(folder: Path, prompt: list[int], params: SamplingParams = PARAMS) -> list[tuple[int, ...]]:
    with LLM(folder, draft="none", prefix_reuse=False) as alone:
        return [tuple(answer.token_ids) for answer in alone.generate([prompt], params)]


def test_a_conversation_reads_its_new_tokens(llm: LLM, folder: Path) -> None:
    rng = random.Random(1)
    text, known, prompts, answers = message(rng, 90), 0, list[list[int]](), list[tuple[int, ...]]()
    for _ in range(6):
        prompt = [*text, *message(rng, 30), 5, 6]
        (answer,) = llm.generate([prompt], PARAMS)
        assert answer.stats.cached_prompt_tokens == known
        prompts.append(prompt)
        answers.append(tuple(answer.token_ids))
        known = len(prompt) + len(answer.token_ids) - 1
        text = [*prompt, *answer.token_ids]
        if text[-1] != END:
            text.append(END)
    for prompt, tokens in zip(prompts[::5], answers[::5], strict=True):
        assert plain(folder, prompt) == [tokens]


def test_several_outputs_share_their_prompt(llm: LLM, folder: Path) -> None:
    prompt = message(random.Random(2), 80)
    params = SamplingParams(max_tokens=12, temperature=1.0, seed=4, n=3)
    answers = llm.generate([prompt], params)
    assert [tuple(answer.token_ids) for answer in answers] == plain(folder, prompt, params)
    assert [answer.stats.cached_prompt_tokens for answer in answers] == [0, 79, 79]


def test_beams_have_states_of_their_own(llm: LLM, folder: Path) -> None:
    """More beams than requests at once; a conversation before them leaves no trace."""
    prompt, params = message(random.Random(5), 40), SamplingParams(max_tokens=10, beam_width=6, n=6)
    llm.generate([prompt], PARAMS)
    answers = llm.generate([prompt], params)
    assert [tuple(answer.token_ids) for answer in answers] == plain(folder, prompt, params)
    assert len({tuple(answer.token_ids) for answer in answers}) == 6


def test_layer_skip_is_refused(folder: Path) -> None:
    with LLM(folder, draft="layer_skip") as llm, pytest.raises(ConfigError, match="first layers alone"):
        llm.generate([[5, 6, 7]], SamplingParams(max_tokens=4))


def test_a_hybrid_drafts_for_a_hybrid(folder: Path) -> None:
    prompt = message(random.Random(3), 50)
    with LLM(folder, draft_model=str(folder), draft="model", spec_length=4) as llm:
        (answer,) = llm.generate([prompt], PARAMS)
    assert plain(folder, prompt) == [tuple(answer.token_ids)]
    assert answer.stats.num_accepted_draft_tokens > 0
    assert answer.stats.draft_error is None


def test_a_tree_of_a_hybrid_draft_model_is_refused_for_its_request_alone(folder: Path) -> None:
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    how = SpeculationParams(draft="model", spec_length=3)
    with LLM(folder, draft_model=str(folder), draft="model", max_batch_size=2) as llm:
        tree, chain = llm.generate([[5, 6], [7, 8]], params, speculation=[replace(how, tree=(2, 1)), how])
    assert tree.stats.draft_error is not None
    assert "drafts chains alone: leave out tree" in tree.stats.draft_error
    assert chain.stats.draft_error is None
    assert chain.stats.num_accepted_draft_tokens > 0
