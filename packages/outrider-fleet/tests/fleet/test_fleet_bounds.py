"""What a request may hold at an ingress and its replicas, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from outrider import LLM, SamplingParams
from outrider.errors import CapacityError
from outrider_fleet.messages.wire import Message, encode
from outrider_fleet.replica import engine_host
from outrider_fleet.replica.engine_host import EngineHost
from tests.fleet.local import LocalReplica
from tests.fleet.test_resume import fleet_of

PARAMS = SamplingParams(max_tokens=12, temperature=0.9, seed=5, ignore_eos=True)


def test_who_does_not_read_frees_the_replica(folder: Path, hosts: list[EngineHost]) -> None:
    """Without waiting for the reader to come back, or for its connection to be cut."""

    async def serve() -> int:
        engine, pool, _ = await fleet_of(folder, [LocalReplica(hosts[0], "r0")])
        request = engine.llm.request("hello", SamplingParams(max_tokens=400, ignore_eos=True, seed=1))
        bursts = engine.bursts([request], backlog=16)
        await anext(bursts)
        for _ in range(2000):
            if not hosts[0].sequences:
                break
            await asyncio.sleep(0.005)
        given = len(request.output)
        with pytest.raises(CapacityError, match="unread"):
            async for _ in bursts:
                pass
        pool.close()
        return given

    assert asyncio.run(serve()) < 100, "of the 400 that were asked for"


def test_outputs_of_one_prompt_share_what_is_sent(folder: Path, hosts: list[EngineHost]) -> None:
    async def serve(n: int) -> int:
        replica = LocalReplica(hosts[0], "r0")
        engine, pool, _ = await fleet_of(folder, [replica])
        bias = dict.fromkeys(range(60), 0.25)
        params = SamplingParams(max_tokens=2, n=n, logit_bias=bias, ignore_eos=True, seed=1)
        await engine.generate([5] * 300, params)
        pool.close()
        return len(encode(replica.given[0]))

    assert asyncio.run(serve(8)) < 1.5 * asyncio.run(serve(1))


def test_log_probabilities_of_a_prompt_come_in_pieces(
    folder: Path, hosts: list[EngineHost], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_host, "PIECE", 60)
    params = SamplingParams(max_tokens=2, prompt_logprobs=5, ignore_eos=True, seed=1)
    sizes: list[int] = []

    class Measured(LocalReplica):
        async def run(self, message: Message) -> AsyncGenerator[Message]:
            async for part in super().run(message):
                sizes.append(sum(map(len, part.get("prompt_logprobs", ()))))
                yield part

    async def serve() -> Any:
        engine, pool, _ = await fleet_of(folder, [Measured(hosts[0], "r0")])
        output = await engine.generate([5, 6, 7] * 40, params)
        pool.close()
        return output.prompt_logprobs

    found = asyncio.run(serve())
    with LLM(str(folder), draft="none", threads=1) as llm:
        assert list(found) == list(llm.generate([[5, 6, 7] * 40], params)[0].prompt_logprobs)
    assert max(sizes) <= 60 < sum(sizes)


def test_a_thousand_broken_requests_leave_nothing(folder: Path, hosts: list[EngineHost]) -> None:
    async def serve() -> None:
        engine, pool, _ = await fleet_of(folder, [LocalReplica(hosts[0], "r0"), LocalReplica(hosts[1], "r1")])
        before = len(asyncio.all_tasks())

        async def leave(number: int) -> None:
            params = SamplingParams(max_tokens=20, n=1 + number % 2, ignore_eos=True)
            requests = engine.llm.requests("hello", params)
            bursts = engine.bursts(requests, backlog=1 if number % 3 == 0 else None)
            try:
                for _ in range(number % 4):
                    await anext(bursts)
            except CapacityError:
                pass
            await bursts.aclose()

        for start in range(0, 1000, 50):
            await asyncio.gather(*(leave(start + i) for i in range(50)))
        assert len(asyncio.all_tasks()) == before
        assert not engine._open
        assert [member.sequences for member in pool.members] == [0, 0]
        pool.close()

    asyncio.run(serve())
    assert [host.sequences for host in hosts] == [0, 0]


def test_names_of_replicas_that_are_gone_make_no_series(folder: Path, hosts: list[EngineHost]) -> None:
    async def serve() -> tuple[set[str], float]:
        engine, pool, metrics = await fleet_of(folder, [LocalReplica(hosts[0], "r0")])
        metrics.watch(pool)
        for number in range(1, 6):
            await engine.generate("hello", PARAMS)
            pool.add(LocalReplica(hosts[0], f"r{number}"))
            while len(pool.members) < 2:
                await asyncio.sleep(0.001)
            pool.lose(f"r{number - 1}")
        found = [s for m in metrics.registry.collect() for s in m.samples if "replica" in s.labels]
        pool.close()
        names = {sample.labels["replica"] for sample in found}
        return names, sum(sample.value for sample in found if sample.name == "outrider:fleet_tokens_total")

    names, tokens = asyncio.run(serve())
    assert names <= {"gone", "r5"}
    assert tokens == 5 * 12
