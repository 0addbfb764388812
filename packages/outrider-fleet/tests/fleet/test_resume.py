"""A stream whose replica dies goes on at another one: the same text, nothing twice, nothing left out."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from outrider import LLM, AsyncLLM, SamplingParams, SpeculationParams
from outrider.config.structured import StructuredOutput
from outrider.errors import OutriderError
from outrider_fleet.ingress import fleet_engine
from outrider_fleet.ingress.fleet_engine import FleetEngine
from outrider_fleet.ingress.front import Front
from outrider_fleet.ingress.metrics import FleetMetrics
from outrider_fleet.ingress.pool import ReplicaPool
from outrider_fleet.ingress.routing import RoundRobinRouter
from outrider_fleet.replica.engine_host import EngineHost
from tests.fleet.local import LocalBackend, LocalReplica, fleet_server, load_hosts
from tests.model_folders import model_folder
from tests.server.live import Live

PARAMS = SamplingParams(max_tokens=40, temperature=0.9, seed=5, ignore_eos=True)


@pytest.fixture(scope="module")
def hosts(folder: Path) -> Iterator[list[EngineHost]]:
    made = load_hosts(folder, 2)
    yield made
    for host in made:
        host.close()


async def fleet_of(folder: Path, replicas: list[LocalReplica]) -> tuple[FleetEngine, ReplicaPool, FleetMetrics]:
    metrics = FleetMetrics(CollectorRegistry())
    pool = ReplicaPool(RoundRobinRouter(), period=0.05)
    for each in replicas:
        pool.add(each)
    while len(pool.members) < len(replicas):
        await asyncio.sleep(0.001)
    return FleetEngine(Front(str(folder), await replicas[0].describe()), pool, metrics), pool, metrics


CASES: dict[str, tuple[SamplingParams, SpeculationParams | None]] = {
    "sampled": (PARAMS, None),
    "greedy": (replace(PARAMS, temperature=0.0), None),
    "several": (replace(PARAMS, n=3), None),
    "logprobs": (replace(PARAMS, logprobs=2, prompt_logprobs=1), None),
    "penalties": (replace(PARAMS, repetition_penalty=1.3, presence_penalty=0.5, min_tokens=30), None),
    "structured": (replace(PARAMS, ignore_eos=False, structured=StructuredOutput(regex="[a-z ]{30,40}")), None),
    "beams": (SamplingParams(max_tokens=12, beam_width=3, n=2, ignore_eos=True), None),
    "other drafts": (PARAMS, SpeculationParams(draft="ngram", spec_length=3)),
    "plain": (PARAMS, SpeculationParams(draft="none")),
}


@pytest.mark.parametrize("case", CASES)
def test_the_output_is_that_of_one_engine_whenever_replicas_die(
    folder: Path, hosts: list[EngineHost], case: str
) -> None:
    params, speculation = CASES[case]
    with LLM(str(folder), draft="none", threads=1) as llm:
        alone = llm.generate("hello world", params)

    async def serve() -> tuple[Any, float]:
        lives = random.Random(case)
        replicas = [LocalReplica(hosts[i % 2], f"r{i}", lives.randrange(1, 8)) for i in range(4)]
        replicas.append(LocalReplica(hosts[0], "r4"))
        engine, pool, metrics = await fleet_of(folder, replicas)
        try:
            output = await engine.generate("hello world", params, speculation=speculation)
        finally:
            pool.close()
        return output, sum(s.value for m in metrics.resumed.collect() for s in m.samples if "total" in s.name)

    output, resumed = asyncio.run(serve())
    assert resumed >= 1, "nothing died, so nothing was tested"
    for one, other in zip(*(x if isinstance(x, list) else [x] for x in (output, alone)), strict=True):
        assert (one.token_ids, one.text, one.finish_reason) == (other.token_ids, other.text, other.finish_reason)
        assert (one.score, one.sum_logprobs) == (other.score, other.sum_logprobs)
        if params.logprobs is not None:
            assert [step.logprobs for step in one.steps] == [step.logprobs for step in other.steps]
            assert list(one.prompt_logprobs or ()) == list(other.prompt_logprobs or ())


def test_a_replica_is_given_what_was_sent_and_says_only_its_end_again(folder: Path, hosts: list[EngineHost]) -> None:
    async def serve() -> tuple[list[int], list[int]]:
        replicas = [LocalReplica(hosts[0], "r0", 6), LocalReplica(hosts[1], "r1")]
        engine, pool, _ = await fleet_of(folder, replicas)
        request = engine.llm.request("hello world", PARAMS, SpeculationParams(draft="none"))
        async for _ in engine.bursts([request]):
            pass
        pool.close()
        return replicas[1].given[0]["requests"][0]["known"], list(request.output)

    known, output = asyncio.run(serve())
    assert known == output[:2]  # six were sent, and the last four are said again


def test_a_replica_that_says_something_else_ends_the_request(folder: Path, tmp_path: Path) -> None:
    other = model_folder(tmp_path / "other", max_position_embeddings=512, num_hidden_layers=1)

    async def serve() -> float:
        hosts = load_hosts(folder, 1, draft="none"), load_hosts(other, 1, draft="none")
        replicas = [LocalReplica(hosts[0][0], "r0", 8), LocalReplica(hosts[1][0], "r1")]
        hosts[1][0]._fingerprint = hosts[0][0]._fingerprint  # it claims to be the same
        engine, pool, metrics = await fleet_of(folder, replicas)
        with pytest.raises(OutriderError, match="disagree"):
            await engine.generate("hello world", PARAMS)
        pool.close()
        for host in (*hosts[0], *hosts[1]):
            host.close()
        return sum(s.value for m in metrics.differing.collect() for s in m.samples if "total" in s.name)

    assert asyncio.run(serve()) == 1


def test_a_request_that_kills_all_that_serve_it_is_given_up(
    folder: Path, hosts: list[EngineHost], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_engine, "MAX_LOSSES", 2)

    async def serve() -> int:
        replicas = [LocalReplica(hosts[0], f"r{i}", 0) for i in range(5)]
        engine, pool, _ = await fleet_of(folder, replicas)
        with pytest.raises(OutriderError, match="3 replicas were lost"):
            await engine.generate("hello", PARAMS)
        pool.close()
        return len(pool.members)

    assert asyncio.run(serve()) == 2


BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}], "seed": 3, "max_tokens": 30}),
    "completion": ("/v1/completions", {"prompt": "hello", "echo": True, "seed": 3, "max_tokens": 30}),
    "responses": ("/v1/responses", {"input": "hello", "temperature": 0, "max_output_tokens": 30}),
    "messages": (
        "/v1/messages",
        {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 30, "temperature": 0},
    ),
    "generate": ("/api/generate", {"prompt": "hello", "options": {"seed": 3, "num_predict": 30}}),
    "llama.cpp": ("/completion", {"prompt": "hello", "seed": 3, "n_predict": 30}),
}


def test_every_api_answers_as_one_engine_does(folder: Path, hosts: list[EngineHost]) -> None:
    def ask(url: str) -> list[str]:
        with httpx.Client(base_url=url, timeout=60) as client:
            texts = []
            for path, body in BODIES.values():
                for stream in (False, True):
                    answer = client.post(path, json={"model": "tiny", "stream": stream} | body)
                    assert answer.status_code == 200, answer.text
                    texts.append(_said(answer.text))
            return texts

    lives = itertools.cycle([3, 5, 9, 14])
    with Live(LLM(str(folder), draft="none", threads=1)) as live:
        alone = ask(live.url)
    with fleet_server(folder, LocalBackend(hosts, lambda: next(lives))) as (server, url):
        assert ask(url) == alone
        metrics = httpx.get(f"{url}/metrics").text
    assert 'outrider:fleet_tokens_total{replica="gone"}' in metrics, "r0 is among them"
    assert server.fleet.pool.lost >= 4


def _said(body: str) -> str:
    """The pieces of text in an answer of any API, in order."""
    found: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            for key, entry in value.items():
                if key in ("content", "text", "response", "delta") and isinstance(entry, str):
                    found.append(entry)
                else:
                    walk(entry)
        elif isinstance(value, list):
            for entry in value:
                walk(entry)

    lines = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith(("data: {", "{"))]
    for line in lines:
        walk(json.loads(line))
    return "".join(found)


def test_a_client_that_leaves_ends_its_sequences_at_the_replica(folder: Path, hosts: list[EngineHost]) -> None:
    async def serve() -> None:
        engine, pool, _ = await fleet_of(folder, [LocalReplica(hosts[0], "r0")])
        async for _ in AsyncLLM.stream(engine, "hello", replace(PARAMS, max_tokens=400)):
            break
        for _ in range(200):
            if not hosts[0].sequences and not pool.members[0].sequences:
                break
            await asyncio.sleep(0.01)
        pool.close()

    asyncio.run(serve())
    assert hosts[0].sequences == 0
