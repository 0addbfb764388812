"""``LLM`` with Mamba-2: the tokens of drafted requests are those without drafts; states that are rolled back wrongly
are noticed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import pytest

from outrider import LLM, SamplingParams, SpeculationParams
from outrider.cache.states import PassSpan, RecurrentStates
from outrider.native.library import library
from tests.tokenizer.vocabularies import sentencepiece
from tests.weights.mambas import CASES, build
from tests.weights.recurrents import save

pytestmark = pytest.mark.skipif(library() is None, reason="no native library")

Asked = tuple[list[int], SamplingParams, SpeculationParams]


def folder_of(case: str, made: Path) -> Path:
    save(build(case), made)
    return sentencepiece(made)


def requests(count: int, drafts: tuple[str, ...]) -> list[Asked]:
    """Prompts with repetitions, of which some begin with others."""
    rng, made = random.Random(5), list[Asked]()
    for i in range(count):
        part = [rng.randrange(3, 250) for _ in range(rng.choice((1, 4, 9)))]
        prompt = (part * 20)[: rng.choice((2, 20, 60))] if i % 3 else [*made[-1][0][:30], *part] if made else part
        params = SamplingParams(max_tokens=12, ignore_eos=True, temperature=rng.choice((0.0, 0.7)), seed=i)
        draft, length = rng.choice(drafts), rng.choice((1, 3, 7))
        made.append((prompt, params, SpeculationParams(draft=draft, spec_length=length)))
    return made


def plain(folder: Path, asked: list[Asked]) -> list[tuple[int, ...]]:
    with LLM(folder, draft="none", prefix_reuse=False, max_batch_size=1, max_seq_len=128) as llm:
        return [tuple(llm.generate([prompt], params)[0].token_ids) for prompt, params, _ in asked]


@pytest.mark.parametrize(
    ("case", "cache"),
    [
        ("nemotron_h with experts", "paged"),
        *(
            pytest.param(case, cache, marks=pytest.mark.slow)
            for case, cache in itertools.product(CASES, ("contiguous", "paged"))
            if (case, cache) != ("nemotron_h with experts", "paged")
        ),
    ],
)
def test_drafts_change_no_token(case: str, cache: Literal["contiguous", "paged"], tmp_path: Path) -> None:
    """Chains and trees, in batches, with prefixes that are reused, and with too little memory for all of them."""
    folder, drafts = folder_of(case, tmp_path), ("suffix", "recycling", "suffix+recycling", "model", "none")
    asked = requests(16, drafts)
    little: Any = {"kv_tokens": 160} if cache == "paged" else {}
    with LLM(
        folder,
        draft="suffix/model",
        draft_model=str(folder),
        kv_cache=cache,
        max_batch_size=4,
        max_seq_len=128,
        **little,
    ) as llm:
        prompts, params, speculation = map(list, zip(*asked, strict=True))
        answers = llm.generate(prompts, params, speculation=speculation)
    assert [tuple(answer.token_ids) for answer in answers] == plain(folder, asked)
    accepted = [answer.stats.num_accepted_draft_tokens for answer in answers]
    rejected = [answer.stats.num_draft_tokens - a for answer, a in zip(answers, accepted, strict=True)]
    assert sum(accepted) > 20
    assert sum(rejected) > 20
    assert all(answer.stats.draft_error is None for answer in answers)


@pytest.mark.slow
def test_a_state_that_is_rolled_back_one_row_too_few_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test above: states hold a row more than is noted."""
    folder = folder_of("nemotron_h", tmp_path)
    asked = requests(6, ("suffix",))
    expected, passed = plain(folder, asked), RecurrentStates.passed

    def one_too_few(states: RecurrentStates, spans: Iterable[PassSpan]) -> None:
        passed(states, spans := list(spans))
        for span in spans:
            if span.num_kept == 1 and states.settled(span.state) > 1:
                states.assume(span.state, states.settled(span.state) - 1)

    monkeypatch.setattr(RecurrentStates, "passed", one_too_few)
    with LLM(folder, draft="suffix", max_batch_size=4, max_seq_len=128) as llm:
        prompts, params, speculation = map(list, zip(*asked, strict=True))
        answers = llm.generate(prompts, params, speculation=speculation)
    assert [tuple(answer.token_ids) for answer in answers] != expected
