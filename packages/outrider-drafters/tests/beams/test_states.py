"""Beam search on models with recurrent states: the same as one that computes every row anew."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from outrider.config import SamplingParams, SpeculationParams
from outrider.config.engine import Implementation
from outrider.drafters.api import RequestView
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.errors import InvalidRequestError
from outrider.native.library import library
from outrider.verify.draft import Draft
from outrider_drafters.beams.method import beam_search
from outrider_drafters.recycling import RecyclingDrafter
from tests.arrays import Floats, log_softmax
from tests.beams.reference import search
from tests.beams.test_search import drawn
from tests.hybrid_toy import HybridToy
from tests.hybrid_traffic import Traffic, logits_after, native
from tests.small_engines import Scripted, engine, request, run

VOCAB, STOPS = 11, (3, 10)
TARGET = HybridToy(VOCAB, seed=1, max_seq_len=160)
PROMPT = (4, 8, 1, 9, 3, 3, 0, 7)
needs_library = pytest.mark.skipif(library() is None, reason="no native library")
DRAFTS = ("none", "knows", "guesses", "recycling", "ngram", "lookup", "knows,guesses")


@cache
def row(tokens: tuple[int, ...]) -> Floats:
    return log_softmax(logits_after(TARGET, tokens)[-1])


def sources(seed: int) -> dict[str, Any]:
    """A source that often knows what comes, and one that knows nothing and branches."""
    dice = random.Random(seed)

    def knows(view: RequestView, budget: int) -> Draft:
        tokens, path = list(view.tokens), list[int]()
        for _ in range(budget):
            path.append(int(row(tuple(tokens)).argmax()) if dice.random() < 0.9 else dice.randrange(VOCAB))
            tokens.append(path[-1])
        return Draft.chain(path, source="knows")

    def guesses(view: RequestView, budget: int) -> Draft:
        size = dice.randrange(budget + 1)
        tokens = tuple(dice.randrange(VOCAB) for _ in range(size))
        return Draft(tokens, tuple(dice.randrange(-1, i) for i in range(size)))

    return {"knows": Scripted(knows), "guesses": Scripted(guesses), "recycling": RecyclingDrafter(VOCAB)}


def group(
    params: SamplingParams, prompt: tuple[int, ...] = PROMPT, id: str = "r", draft: str = "none"
) -> list[Request]:
    """The requests of one search: the leader, and those of the other outputs."""
    ids = [id, *(f"{id}-{i}" for i in range(1, params.n))]
    made = [
        Request(each, prompt, params, SpeculationParams(draft=draft, spec_length=4), frozenset(STOPS)) for each in ids
    ]
    for one in made:
        beam_search(one, None if one is made[0] else made[0])
    return made


def expected(params: SamplingParams, prompt: tuple[int, ...] = PROMPT) -> list[tuple[int, ...]]:
    def shaped(output: tuple[int, ...]) -> Floats:
        logprobs = row((*prompt, *output)).copy()
        if len(output) < params.min_tokens:
            logprobs[list(STOPS)] = -np.inf
        if params.repetition_penalty != 1.0:
            logprobs[list({*prompt, *output})] *= params.repetition_penalty
        return logprobs

    return [found.output for found in search(shaped, params, STOPS)][: params.n]


def outputs(requests: list[Request]) -> list[Any]:
    return [(list(r.output), r.ranked, r.finish_reason) for r in requests]


def serving(seed: int = 0, **options: Any) -> Engine:
    return engine(TARGET, eos=STOPS, more=sources(seed), **({"branches": 24, "pending": 12} | options))


def check_search(seed: int) -> None:
    dice, params = random.Random(seed), drawn(seed)
    prompt = tuple(dice.randrange(VOCAB) for _ in range(dice.randint(1, 30)))
    plain: list[Any] = []
    for draft in ("none", *dice.sample(DRAFTS[1:], 2)):
        kind = dice.choice(("contiguous", "paged"))
        served = serving(seed, kind=kind, max_batched_tokens=dice.choice((3, 7, 40)))
        requests = group(params, prompt, draft=draft)
        run(served, *requests)
        assert [tuple(one.output) for one in requests] == expected(params, prompt)
        plain = plain or outputs(requests)
        assert outputs(requests) == plain  # bit for bit


@pytest.mark.parametrize("seed", range(4))
def test_finds_what_a_search_without_a_cache_finds(seed: int) -> None:
    check_search(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4, 304))
def test_finds_it_in_many_more_cases(seed: int) -> None:
    check_search(seed)


def crowd(dice: random.Random) -> list[list[Request]]:
    """Searches and sampled requests, some of which begin alike."""
    made: list[list[Request]] = []
    for i in range(7):
        prompt = PROMPT[: dice.randint(1, 8)] * dice.choice((1, 1, 4))
        if dice.random() < 0.4:
            options = SamplingParams(max_tokens=dice.randint(1, 25), temperature=0.8, seed=i)
            made.append([request(prompt, options, id=str(i), stop_ids=STOPS, draft=dice.choice(DRAFTS))])
        else:
            count = dice.randint(2, 25)
            params = replace(drawn(dice.randrange(1000)), max_tokens=count, min_tokens=count // 2)
            made.append(group(params, prompt, str(i), dice.choice(DRAFTS)))
    return made


def check_company(seed: int, tokens: int) -> int:
    """Serve a crowd; returns the number of preemptions."""
    dice = random.Random(seed)
    slots, kind = dice.choice((2, 5, 7)), dice.choice(("contiguous", "paged", "paged"))
    options: dict[str, Any] = {
        "branches": dice.choice((12, 64)),
        "slots": slots,
        "kind": kind,
        "block_size": 4,
        "tokens": tokens,
    }
    served = serving(seed, max_seq_len=64, max_batched_tokens=dice.randint(5, 30), **options)
    free = served.cache.free_tokens()
    requests = crowd(random.Random(seed))
    run(served, *(one for each in requests for one in each))
    assert served.cache.free_tokens() == free
    for together, alone in zip(requests, crowd(random.Random(seed)), strict=True):
        run(serving(seed, max_seq_len=64), *alone)
        assert outputs(together) == outputs(alone)
    return served.stats.preemptions


def test_company_and_want_of_memory_change_nothing() -> None:
    assert check_company(11, tokens=72) > 9


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4, 154))
def test_nor_do_they_in_many_more_cases(seed: int) -> None:
    check_company(seed, tokens=random.Random(seed).choice((72, 160)))


def test_drafts_save_passes() -> None:
    params = SamplingParams(beam_width=2, n=2, max_tokens=24, min_tokens=24)
    plain, drafted = group(params), group(params, draft="knows")
    run(serving(), *plain)
    run(serving(), *drafted)
    assert outputs(plain) == outputs(drafted)
    assert plain[0].stats.target_runs == 24
    assert drafted[0].stats.target_runs < 23
    assert 0 < drafted[0].stats.num_accepted_draft_tokens < drafted[0].stats.num_draft_tokens


def test_a_search_leaves_its_prompt_to_others() -> None:
    """The slot's own state stays that of the prompt, and the next request finds its copy."""
    served = serving(kind="paged", block_size=4)
    first = group(SamplingParams(beam_width=3, n=1, max_tokens=9), PROMPT * 4)
    run(served, *first)
    second = request(PROMPT * 4, SamplingParams(max_tokens=9), stop_ids=STOPS)
    run(served, second)
    assert second.stats.cached_prompt_tokens == 31
    alone = request(PROMPT * 4, SamplingParams(max_tokens=9), stop_ids=STOPS)
    run(serving(), alone)
    assert second.output == alone.output


def test_more_beams_than_states_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="beam_width=4 needs as many recurrent states") as error:
        serving(branches=3).add(group(SamplingParams(beam_width=4))[0])
    assert error.value.param == "beam_width"


def test_beams_that_no_memory_is_left_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until others have searched as widely: their states have memory already."""
    served, params = serving(branches=8), SamplingParams(beam_width=4, n=1, max_tokens=5)
    states = served.cache.states
    assert states is not None
    needed = states.bytes_of_more(4)
    assert needed == 4 * states.shape.sequence_bytes(states.pending)
    monkeypatch.setattr("outrider.engine.request_checks.available_memory", lambda: needed - 1)
    with pytest.raises(InvalidRequestError, match="MB of memory are free: use fewer beams, or free memory") as error:
        served.add(group(params)[0])
    assert error.value.param == "beam_width"
    monkeypatch.setattr("outrider.engine.request_checks.available_memory", lambda: needed)
    first = group(params)
    run(served, *first)
    assert states.bytes_of_more(4) == 0
    monkeypatch.setattr("outrider.engine.request_checks.available_memory", lambda: 0)
    second = group(params, id="again")
    run(served, *second)
    assert second[0].output == first[0].output
    served.cache.check()


def test_a_draft_model_with_states_does_not_draft_for_beams() -> None:
    params = SamplingParams(beam_width=2, n=2, max_tokens=9)
    plain, drafted = group(params), group(params, draft="model")
    run(serving(), *plain)
    run(serving(), *drafted)
    assert outputs(plain) == outputs(drafted)
    assert "a draft model with recurrent layers drafts chains" in str(drafted[0].stats.draft_error)


def native_crowd(seed: int, traffic: Traffic, *, plain: bool) -> list[list[Request]]:
    """Random searches, and sampled requests between them; ``plain``: without drafts."""
    dice, made = random.Random(seed), list[list[Request]]()
    for i in range(6):
        prompt = tuple(dice.randrange(traffic.vocab_size) for _ in range(dice.choice((1, 3, 20))))
        prompt = (*traffic.beginning, *prompt) if dice.random() < 0.5 else prompt
        draft, count = dice.choice(("none", "forked", "forked", "suffix", "ngram")), dice.randint(2, 24)
        draft = "none" if plain else draft
        if dice.random() < 0.3:
            options = SamplingParams(max_tokens=count, temperature=0.8, seed=i)
            made.append([request(prompt, options, id=str(i), stop_ids=(traffic.end,), draft=draft)])
        else:
            params = replace(drawn(dice.randrange(1000)), max_tokens=count, min_tokens=count // 2)
            made.append(group(params, prompt, str(i), draft))
    return made


def check_native(seed: int, implementation: Implementation = "native") -> Counter[str]:
    """Serve a crowd on a hybrid, and each of its members alone and without drafts."""
    dice = random.Random(seed)
    dtype, kind = dice.choice(("float32", "q8_0", "q4_1")), dice.choice(("delta", "delta", "short", "mamba2"))
    traffic = native("float32" if implementation == "torch" else dtype, kind, implementation)
    options: dict[str, Any] = {"branches": dice.choice((12, 64)), "slots": dice.choice((2, 6)), "block_size": 4}
    options |= {"kind": dice.choice(("contiguous", "paged", "paged")), "tokens": dice.choice((128, 300))}
    served = traffic.engine(max_batched_tokens=dice.randint(6, 60), **options)
    together = native_crowd(seed, traffic, plain=False)
    run(served, *(one for each in together for one in each))
    for found, alone in zip(together, native_crowd(seed, traffic, plain=True), strict=True):
        run(traffic.engine(branches=12, prefix_reuse=False), *alone)
        assert outputs(found) == outputs(alone)
        assert found[0].stats.draft_error is None
    accepted = sum(each[0].stats.num_accepted_draft_tokens for each in together)
    return Counter(preempted=served.stats.preemptions, accepted=accepted)


@needs_library
def test_company_changes_no_bit_of_a_native_model() -> None:
    counts = check_native(2)
    assert counts["accepted"] > 0


@needs_library
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(150))
def test_nor_does_it_in_many_more_cases(seed: int) -> None:
    check_native(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_company_changes_no_bit_on_torch(seed: int) -> None:
    check_native(seed, "torch")
