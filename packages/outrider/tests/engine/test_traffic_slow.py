"""Traffic too heavy for every run: 64 mixed requests on a real model, and a soak of 20,000 short ones."""

from __future__ import annotations

import random
import resource
from typing import Any

import pytest

from outrider import LLM, SamplingParams, SpeculationParams
from outrider.engine.request import Request
from outrider.models.toy import TableModel
from tests.paths import ROOT
from tests.small_engines import engine, request

pytestmark = pytest.mark.slow

OPTIONS: list[dict[str, Any]] = [
    {},
    {},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 0.8, "top_k": 40, "min_p": 0.05},
    {"temperature": 0.6, "repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.1},
    {"temperature": 0.9, "logit_bias": {11: 1.5}, "banned_token_ids": (198,), "min_tokens": 10},
    {"logprobs": 3},
]
TEXT = (ROOT / "docs" / "exactness.md").read_text()


@pytest.mark.parametrize(
    "options",
    [
        {"kv_cache": "contiguous", "prefix_reuse": True},
        {"kv_cache": "paged", "prefix_reuse": True, "kv_tokens": 1100},  # too few for all: requests are preempted
        {"kv_cache": "paged", "prefix_reuse": False},
    ],
    ids=["contiguous", "paged, short of memory", "paged, no reuse"],
)
def test_64_requests_on_a_real_model_are_each_what_they_are_alone(options: dict[str, Any]) -> None:
    rng = random.Random(5)
    llm = LLM(
        "smollm2-135m-instruct",
        draft_model="smollm2-135m-instruct",
        draft_dtype="int8",
        max_batch_size=16,
        max_seq_len=1024,
        progress=True,
        **options,
    )
    asked: list[tuple[list[int], SamplingParams, SpeculationParams]] = []
    for _ in range(64):
        start = rng.randrange(len(TEXT) - 1800)
        text = TEXT[start : start + rng.choice((20, 100, 400, 1800))]
        params = SamplingParams(**rng.choice(OPTIONS), max_tokens=rng.randint(8, 32), seed=rng.randrange(99))
        source = rng.choice(("none", "ngram", "lookup", "model"))
        asked.append(
            (
                llm.tokenizer.encode(text),
                params,
                SpeculationParams(draft=source, spec_length=rng.choice([1, 3, 8, "auto"])),
            )
        )
    requests = [llm.requests(*one)[0] for one in asked]
    serve(llm, requests, rng)
    aborted = 0
    for r, (ids, params, _) in zip(requests, asked, strict=True):
        alone = llm.generate([ids], params, speculation=SpeculationParams(draft="none"))[0].token_ids
        aborted += r.finish_reason is None
        assert list(r.output) == (alone if r.finish_reason else alone[: len(r.output)])
        assert r.stats.draft_error is None
    assert 0 < aborted < 10
    if options.get("kv_tokens"):
        assert llm.engine.stats.preemptions > 0


def serve(llm: LLM, requests: list[Request], rng: random.Random) -> None:
    """Let requests arrive at random, abort a few, and check the caches after every step."""
    coming, doomed = list(requests), {r.id for r in rng.sample(requests, 6)}
    while coming or llm.engine.busy:
        for _ in range(min(len(coming), rng.choice((0, 0, 1, 4)))):
            llm.engine.add(coming.pop())
        for step in llm.engine.step():
            if step.request_id in doomed and rng.random() < 0.1:
                llm.engine.abort(step.request_id)
        for cache in llm.engine.memory.caches():
            cache.check()


def test_soak_of_20000_requests() -> None:
    """Every block is free at the end, and memory does not grow."""
    rng = random.Random(1)
    target = TableModel.random(11, 2, seed=1, max_seq_len=96)
    served = engine(target, slots=16, kind="paged", tokens=800, block_size=4)
    total = served.cache.free_tokens()
    memory = []
    for wave in range(20):
        for i in range(1000):
            source = rng.choice(("none", "ngram", "lookup", "model"))
            params = SamplingParams(max_tokens=rng.randint(1, 6), temperature=rng.choice((0.0, 1.0)), seed=i)
            prompt = [rng.randrange(11) for _ in range(rng.randint(1, 12))]
            served.add(request(prompt, params, id=f"{wave}-{i}", draft=source, spec_length=3))
        while served.busy:
            served.step()
        served.cache.check()
        assert served.cache.free_tokens() == total
        memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    assert memory[-1] - memory[4] < 30  # MB
