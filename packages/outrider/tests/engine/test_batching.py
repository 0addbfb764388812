"""Fifty requests at once give each the tokens it gets alone: any mix, any arrival, both caches, with preemption."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.config import SamplingParams
from outrider.engine.request import Request
from outrider.models.toy import TableModel
from tests.small_engines import engine, request, run

TARGET = TableModel.random(11, 2, seed=1, max_seq_len=96)
DRAFT = TableModel(TARGET.table + 0.7 * TableModel.random(11, 2, seed=2).table, max_seq_len=96)

OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 5},
    {"temperature": 1.2, "top_p": 0.8},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 0.9, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    {"temperature": 1.0, "logit_bias": {3: 2.0}, "banned_token_ids": (5,)},
    {"temperature": 1.0, "min_tokens": 6, "stop_token_ids": (2, 7)},
    {"temperature": 1.0, "logprobs": 3},
    {"temperature": 1.0, "prompt_logprobs": 2},
]


def make(rng: random.Random, name: str, source: str | None = None) -> Request:
    options = dict(rng.choice(OPTIONS), max_tokens=rng.randint(6, 24), seed=rng.randrange(1000))
    prompt = [rng.randrange(11) for _ in range(rng.choice((1, 2, 5, 17, 18, 40)))]
    if rng.random() < 0.5:  # half of them share a beginning
        prompt = [4, 8, 1, 9, 3, 3, 0, 7, 10, 2, 6, 5, 1, 1, 4, 9, 0, 2, *prompt[:20]]
    chosen = source or rng.choice(("none", "ngram", "lookup", "model"))
    made = request(
        prompt,
        SamplingParams(**options),
        id=name,
        draft=chosen,
        spec_length=rng.choice([1, 2, 3, 4, 5, 6, "auto"]),
        letters=True,
    )
    made.priority = rng.choice((0, 0, 0, 1))
    made.cache_salt = rng.choice(("", "", "tenant"))
    return made


def alone(like: Request) -> Request:
    """The same request with nobody beside it and without drafts."""
    plain = request(like.prompt, like.params, id=like.id, draft="none", letters=True)
    run(engine(TARGET, draft=DRAFT), plain)
    return plain


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["contiguous", "paged"]),
    prefix_reuse=st.booleans(),
    slots=st.integers(1, 9),
    budget=st.integers(12, 80),
)
def test_any_traffic_gives_each_request_its_own_tokens(
    seed: int, kind: str, prefix_reuse: bool, slots: int, budget: int
) -> None:
    rng = random.Random(seed)
    served = engine(
        TARGET,
        draft=DRAFT,
        slots=slots,
        kind=kind,
        tokens=rng.choice((96, 160, 400)),  # the smaller ones force preemption
        block_size=rng.choice((1, 4, 16)),
        prefix_reuse=prefix_reuse,
        max_batched_tokens=budget,
    )
    requests = [make(rng, str(i)) for i in range(16)]
    aborted = set(rng.sample([r.id for r in requests], 3))
    coming = list(requests)
    while coming or served.busy:
        while coming and rng.random() < 0.5:
            served.add(coming.pop())
        served.step()
        served.cache.check()
        for cache in served.memory.caches():
            cache.check()
        if rng.random() < 0.1:
            served.abort(rng.choice(sorted(aborted)))
    for r in requests:
        plain = alone(r)
        if r.id in aborted and r.finish_reason is None:
            assert list(r.output) == list(plain.output)[: len(r.output)]
        else:
            assert r.error is None
            assert (list(r.output), r.text, r.finish_reason) == (list(plain.output), plain.text, plain.finish_reason)
            assert list(r.prompt_report.logprobs) == list(plain.prompt_report.logprobs)
        assert r.slot is None
    free = served.memory.free_kv_tokens()
    assert free == served.cache.free_tokens()


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_prefixes_are_found_again_as_often_with_speculation_as_without(kind: str) -> None:
    found = {}
    for source in ("none", "ngram", "model"):
        rng = random.Random(7)
        served = engine(TARGET, draft=DRAFT, slots=4, kind=kind, block_size=4)
        requests = [make(rng, str(i), source) for i in range(24)]
        for r in requests:
            run(served, r)
        found[source] = [r.stats.cached_prompt_tokens for r in requests]
    assert sum(found["none"]) > 100
    assert found["none"] == found["ngram"] == found["model"]


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_tenants_do_not_share_prefixes(kind: str) -> None:
    served = engine(TARGET, kind=kind, block_size=4, slots=2)
    first, same, other = (request([1] * 20, id=name) for name in "abc")
    first.cache_salt = same.cache_salt = "one"
    other.cache_salt = "two"
    for r in (first, same, other):
        run(served, r)
    assert first.stats.cached_prompt_tokens == other.stats.cached_prompt_tokens == 0
    assert same.stats.cached_prompt_tokens >= 16


def test_several_outputs_of_one_prompt_share_its_blocks() -> None:
    served = engine(TARGET, kind="paged", block_size=4, slots=4)
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    first = request(prompt, SamplingParams(temperature=1.0, seed=5, max_tokens=20), id="0")
    twins = [request(prompt, SamplingParams(temperature=1.0, seed=5 + i, max_tokens=20), id=str(i)) for i in (1, 2)]
    for twin in twins:
        twin.prefix_leader = first
    run(served, first, *twins)
    assert [t.stats.cached_prompt_tokens for t in twins] == [8, 8]
    assert len({tuple(r.output) for r in (first, *twins)}) == 3


def test_multi_token_output() -> None:
    """A step of speculation sends several events for one request, in order; the last says how it went."""
    served = engine(TARGET, slots=2)
    r = request([1, 2, 3], SamplingParams(max_tokens=12), draft="model", spec_length=5)
    served.add(r)
    steps = []
    while served.busy:
        steps.append(served.step())
    assert any(len(outputs) > 1 for outputs in steps)
    events = [event for outputs in steps for event in outputs]
    assert [event.token_id for event in events] == list(r.output)
    assert [event.finish_reason for event in events] == [None] * 11 + ["length"]
    assert [event.acceptance_rate for event in events[:-1]] == [None] * 11
    assert events[-1].acceptance_rate == r.stats.draft_acceptance_rate
    assert sum(drafted for drafted, _ in r.stats.rounds) == r.stats.num_draft_tokens


def test_preempted_requests_resume_and_finish() -> None:
    served = engine(TARGET, draft=DRAFT, slots=4, kind="paged", tokens=96, block_size=4, prefix_reuse=False)
    requests = [
        request([i] * 20, SamplingParams(max_tokens=40, temperature=1.0, seed=i), id=str(i), draft="model")
        for i in range(4)
    ]
    run(served, *requests)
    assert served.stats.preemptions > 0
    for r in requests:
        assert list(r.output) == list(alone(r).output)


def test_soak_ends_with_every_block_free() -> None:
    rng = random.Random(3)
    served = engine(TARGET, slots=8, kind="paged", tokens=300, block_size=4)
    total = served.cache.free_tokens()
    for wave in range(15):
        requests = [make(rng, f"{wave}-{i}") for i in range(10)]
        for r in requests:
            served.add(r)
        while served.busy:
            served.step()
    served.cache.check()
    assert served.cache.free_tokens() == total
