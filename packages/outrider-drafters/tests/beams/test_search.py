"""Beam search against one that recomputes everything, on a model that notices a row too many or out of place."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from outrider.config import SamplingParams, SpeculationParams
from outrider.drafters.api import Drafter, RequestView
from outrider.drafters.text.suffix import SuffixDrafter
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.engine.request_state import Ranked
from outrider.errors import InvalidRequestError, NumericalError
from outrider.models.toy import TableModel
from outrider.verify.draft import Draft
from outrider_drafters.beams.method import beam_search
from outrider_drafters.recycling import RecyclingDrafter
from tests.arrays import Floats, log_softmax, randn
from tests.beams.reference import Found, search
from tests.small_engines import Scripted, engine, request, run

VOCAB = 12
STOPS = (3, 5)
PROMPT = [1, 2, 7, 1, 2]


def table(seed: int = 0) -> TableModel:
    return TableModel.random(VOCAB, 3, seed=seed)


def group(params: SamplingParams, prompt: list[int] = PROMPT, id: str = "r", **speculation: Any) -> list[Request]:
    """The requests of one search: the leader, and those of the other outputs."""
    drafts = SpeculationParams(**{"draft": "none"} | speculation)
    ids = [id, *(f"{id}-{i}" for i in range(1, params.n))]
    requests = [Request(each, tuple(prompt), params, drafts, frozenset(STOPS)) for each in ids]
    for one in requests:
        beam_search(one, None if one is requests[0] else requests[0])
    return requests


def expected(model: TableModel, params: SamplingParams, prompt: list[int] = PROMPT) -> list[Found]:
    def row(output: tuple[int, ...]) -> Floats:
        logprobs = log_softmax(model.table[tuple([*prompt, *output][-3:])])
        if len(output) < params.min_tokens:
            logprobs = logprobs.copy()
            logprobs[list(STOPS)] = -np.inf
        if params.repetition_penalty != 1.0:
            logprobs = logprobs.copy()
            seen = list({*prompt, *output})
            logprobs[seen] *= params.repetition_penalty
        return logprobs

    return search(row, params, STOPS)


def check(requests: list[Request], found: list[Found]) -> None:
    for one, wanted in zip(requests, found, strict=False):
        assert tuple(one.output) == wanted.output
        assert one.ranked is not None
        assert one.ranked.score == pytest.approx(wanted.score, abs=2e-5)
        assert one.ranked.sum_logprobs == pytest.approx(wanted.total, abs=2e-4)
        assert one.finish_reason == ("stop" if wanted.output[-1] in STOPS else "length")


def sources(model: TableModel, seed: int) -> Mapping[str, Drafter]:
    """A source that often knows what comes, and one that knows nothing and branches."""
    dice = random.Random(seed)

    def knows(view: RequestView, budget: int) -> Draft:
        tokens, path = list(view.tokens), []
        for _ in range(budget):
            path.append(int(model.table[tuple(tokens[-3:])].argmax()) if dice.random() < 0.9 else dice.randrange(VOCAB))
            tokens.append(path[-1])
        return Draft.chain(path, source="knows")

    def guesses(view: RequestView, budget: int) -> Draft:
        size = dice.randrange(budget + 1)
        return Draft(
            tuple(dice.randrange(VOCAB) for _ in range(size)), tuple(dice.randrange(-1, i) for i in range(size))
        )

    return {
        "knows": Scripted(knows),
        "guesses": Scripted(guesses),
        "recycling": RecyclingDrafter(VOCAB),
        "suffix": SuffixDrafter(VOCAB),
    }


DRAFTS = ("none", "knows", "guesses", "recycling", "suffix+recycling", "ngram", "lookup", "knows,guesses", "model")


def nearly(model: TableModel, seed: int = 0) -> TableModel:
    """A draft model that is mostly right."""
    noise = randn(*model.table.shape, seed=seed)
    return TableModel(model.table + 0.2 * noise, max_seq_len=model.config.max_seq_len)


def drawn(seed: int) -> SamplingParams:
    dice = random.Random(seed)
    groups = dice.choice([1, 1, 2, 3])
    width = groups * dice.randint(1, 4)
    most = dice.randint(1, 24)
    return SamplingParams(
        beam_width=width,
        n=dice.randint(1, width),
        max_tokens=most,
        min_tokens=dice.choice([0, 0, min(most, 5)]),
        length_penalty=dice.choice([1.0, 0.0, 2.0, -1.0, 0.6]),
        early_stopping=dice.choice([True, False, "never"]),
        num_beam_groups=groups,
        diversity_penalty=dice.choice([0.5, 2.0]) if groups > 1 else 0.0,
        repetition_penalty=dice.choice([1.0, 1.0, 1.3]),
    )


def outputs(requests: list[Request]) -> list[Any]:
    return [(list(r.output), r.ranked, r.finish_reason) for r in requests]


def check_against_search_without_cache(seed: int, kind: str) -> None:
    model, params = table(seed), drawn(seed)
    plain: list[Any] = []
    for draft in (DRAFTS[0], DRAFTS[1 + seed % 8], DRAFTS[1 + (seed + 3) % 8]):
        target = engine(
            model,
            draft=nearly(model),
            eos=STOPS,
            more=sources(model, seed),
            kind=kind,
            max_batched_tokens=3 + seed % 40,
        )
        requests = group(params, draft=draft)
        run(target, *requests)
        check(requests, expected(model, params))
        plain = plain or outputs(requests)
        assert outputs(requests) == plain  # bit for bit
        for source in sources(model, seed).values():
            assert not getattr(source, "running", ())


@pytest.mark.parametrize("seed", range(14))
def test_finds_what_a_search_without_a_cache_finds(seed: int) -> None:
    check_against_search_without_cache(seed, ("contiguous", "paged")[seed % 2])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(14, 214))
def test_finds_it_in_many_more_cases(seed: int) -> None:
    check_against_search_without_cache(seed, ("contiguous", "paged")[seed % 2])


def test_drafts_save_runs_and_change_nothing() -> None:
    model = TableModel.random(VOCAB, 3, seed=4, scale=6.0)
    params = SamplingParams(beam_width=3, n=3, max_tokens=40, min_tokens=40)
    plain, drafted = group(params), group(params, draft="knows", spec_length=4)
    run(engine(model, eos=STOPS), *plain)
    run(engine(model, eos=STOPS, more=sources(model, 0)), *drafted)
    assert outputs(plain) == outputs(drafted)
    assert plain[0].stats.target_runs == plain[0].stats.beam_steps == 40
    assert drafted[0].stats.beam_steps == 40
    assert drafted[0].stats.target_runs < 34
    assert 0 < drafted[0].stats.num_accepted_draft_tokens < drafted[0].stats.num_draft_tokens


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
@pytest.mark.parametrize("width", [1, 3, 64])
def test_a_draft_model_searches_ahead(kind: str, width: int) -> None:
    """The target itself as its draft model: any row of its tree out of place would cost runs."""
    model = TableModel.random(VOCAB, 3, seed=7, max_seq_len=700)
    params = SamplingParams(beam_width=width, n=1, max_tokens=25, min_tokens=25)
    plain, drafted = group(params), group(params, draft="model", spec_length=4)
    run(engine(model, eos=STOPS, kind=kind), *plain)
    target = engine(model, eos=STOPS, kind=kind)
    (cache,) = target.drafters["model"].caches
    free = cache.free_tokens()
    run(target, *drafted)
    assert outputs(plain) == outputs(drafted)
    assert drafted[0].stats.draft_error is None
    assert drafted[0].stats.target_runs == 5
    cache.check()
    assert cache.free_tokens() == free


def test_a_draft_model_that_errs_or_is_short_of_room_changes_nothing() -> None:
    model = TableModel.random(VOCAB, 3, seed=4)
    params = SamplingParams(beam_width=4, n=4, max_tokens=40, min_tokens=40)
    plain = group(params)
    run(engine(model, eos=STOPS), *plain)
    for draft in (nearly(model), TableModel(nearly(model).table, max_seq_len=30)):
        drafted = group(params, draft="model", spec_length=3)
        run(engine(model, eos=STOPS, draft=draft), *drafted)
        assert outputs(plain) == outputs(drafted)
        assert drafted[0].stats.draft_error is None
        assert 0 < drafted[0].stats.num_accepted_draft_tokens < drafted[0].stats.num_draft_tokens


def crowd(model: TableModel) -> list[list[Request]]:
    """Searches and plain requests with the same beginning."""
    plain = SamplingParams(max_tokens=14, temperature=0.8, seed=3)
    return [
        group(SamplingParams(beam_width=3, n=2, max_tokens=12), id="a", draft="knows"),
        [request(PROMPT * 3, plain, id="b", stop_ids=STOPS, draft="ngram")],
        group(SamplingParams(beam_width=2, n=1, max_tokens=12, length_penalty=0.0), PROMPT * 3, id="c"),
        [request(PROMPT, plain, id="d", stop_ids=STOPS)],
        group(SamplingParams(beam_width=4, n=4, max_tokens=9), PROMPT[::-1], id="e", draft="guesses"),
        group(SamplingParams(beam_width=3, n=1, max_tokens=11), PROMPT, id="f", draft="model"),
    ]


@pytest.mark.parametrize("tokens", [45, 300])
def test_company_and_want_of_memory_change_nothing(tokens: int) -> None:
    model = TableModel.random(VOCAB, 3, max_seq_len=45)

    def served(requests: list[list[Request]], **options: Any) -> tuple[list[Any], Engine]:
        target = engine(model, eos=STOPS, more=sources(model, 1), max_seq_len=45, **options)
        free = target.cache.free_tokens()
        run(target, *(one for each in requests for one in each))
        assert target.cache.free_tokens() == free
        return [outputs(each) for each in requests], target

    alone = [served([each])[0][0] for each in crowd(model)]
    together, target = served(crowd(model), slots=5, kind="paged", block_size=4, tokens=tokens, max_batched_tokens=9)
    assert together == alone
    assert (target.stats.preemptions > 0) == (tokens < 300)


def test_a_full_context_ends_all_beams_alike_with_and_without_drafts() -> None:
    model = TableModel.random(VOCAB, 3, max_seq_len=24)
    params = SamplingParams(beam_width=4, n=4, max_tokens=200, min_tokens=200)
    plain, drafted = group(params), group(params, draft="knows")
    run(engine(model, eos=STOPS), *plain)
    run(engine(model, eos=STOPS, more=sources(model, 0)), *drafted)
    assert outputs(plain) == outputs(drafted)
    assert all(one.finish_reason == "length" and 5 <= len(one.output) <= 19 for one in plain)


def test_an_abort_releases_everything() -> None:
    model, more = table(), sources(table(), 0)
    target = engine(model, eos=STOPS, more=more)
    target.add(group(SamplingParams(beam_width=4, max_tokens=30, min_tokens=30), draft="knows")[0])
    for _ in range(4):
        target.step()
    target.abort("r")
    target.cache.check()
    assert not target.busy
    assert isinstance(knows := more["knows"], Scripted)
    assert not knows.running
    run(target, *group(SamplingParams(beam_width=2, max_tokens=3)))


def test_a_row_that_is_no_number_ends_every_output_of_the_search() -> None:
    model, params = table(), SamplingParams(beam_width=2, n=2, max_tokens=30, min_tokens=30)
    before, requests = group(params), group(params)
    run(engine(model, eos=STOPS), *before)
    model.table[tuple(before[0].output[4:7])] = np.nan
    run(engine(model, eos=STOPS), *requests)
    assert all(isinstance(one.error, NumericalError) for one in requests)


def test_outputs_that_do_not_exist_are_empty() -> None:
    params = SamplingParams(beam_width=3, n=3, max_tokens=1, allowed_token_ids=[1, 4])
    requests = group(params)
    run(engine(table(), eos=STOPS), *requests)
    assert sorted(len(one.output) for one in requests) == [0, 1, 1]
    assert requests[2].ranked == Ranked(float("-inf"), float("-inf"))


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"beam_width": 4, "n": 5}, "n"),
        ({"beam_width": 4, "temperature": 0.5}, "temperature"),
        ({"beam_width": 4, "stop": ["x"]}, "stop"),
        ({"beam_width": 4, "logprobs": 1}, "logprobs"),
        ({"beam_width": 4, "num_beam_groups": 3, "diversity_penalty": 1.0}, "num_beam_groups"),
        ({"beam_width": 4, "num_beam_groups": 2}, "diversity_penalty"),
        ({"beam_width": 4, "diversity_penalty": 1.0}, "diversity_penalty"),
        ({"beam_width": 4, "early_stopping": "maybe"}, "early_stopping"),
        ({"beam_width": 65}, "beam_width"),
        ({"length_penalty": 2.0}, "length_penalty"),
    ],
)
def test_refuses_what_means_nothing(options: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as error:
        SamplingParams(**options)
    assert error.value.param == param
