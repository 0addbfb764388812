"""Replicas that answer what they should not, or fail: requests go on, and others hear nothing of it."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from outrider import LLM, SamplingParams
from outrider.errors import OutriderError
from outrider_fleet.messages.replica import ReplicaLostError
from outrider_fleet.messages.wire import Message
from outrider_fleet.replica import engine_host
from outrider_fleet.replica.engine_host import EngineHost
from tests.fleet.local import LocalReplica
from tests.fleet.test_resume import fleet_of

PARAMS = SamplingParams(max_tokens=12, temperature=0.9, seed=5, ignore_eos=True)
Change = Callable[[Message], Any]


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[int]:
    with LLM(str(folder), draft="none", threads=1) as llm:
        return list(llm.generate("hello world", PARAMS).token_ids)


class Broken(LocalReplica):
    """From its third part on it says what ``change`` makes of what it should say."""

    def __init__(self, host: EngineHost, name: str, change: Change) -> None:
        super().__init__(host, name)
        self._change = change

    async def run(self, message: Message) -> AsyncGenerator[Message]:
        number = 0
        async for part in super().run(message):
            number += 1
            yield part if number < 3 or "done" in part else self._change(copy.deepcopy(part))


def put(**changes: Any) -> Change:
    return lambda part: part | changes


def first_step(at: int, value: Any) -> Change:
    def change(part: Message) -> Message:
        part["steps"][0][at] = value
        return part

    return change


def without(name: str) -> Change:
    return lambda part: {key: value for key, value in part.items() if key != name}


PARTS: dict[str, Change] = {
    "nothing": lambda part: {},
    "no steps": without("steps"),
    "no index": without("i"),
    "an index too large": put(i=1),
    "a huge index": put(i=10**30),
    "a negative index": put(i=-1),
    "an index that is text": put(i="x"),
    "no index at all": put(i=None),
    "steps that are text": put(steps="abc"),
    "a step of nothing": put(steps=[None]),
    "a step too short": put(steps=[[1, "target"]]),
    "a step too long": put(steps=[[1, "target", "none", None, None, 1]]),
    "a token beyond the vocabulary": first_step(0, 10**6),
    "a token beyond 64 bits": first_step(0, 2**70),
    "a negative token": first_step(0, -1),
    "a token that is text": first_step(0, "hello"),
    "a token with a fraction": first_step(0, 1.5),
    "an origin that there is not": first_step(1, "stolen"),
    "a source that is a list": first_step(2, ["ngram"]),
    "log-probabilities that are text": first_step(3, "abc"),
    "log-probabilities without tokens": first_step(3, [[None, 0.5]]),
    "a report of something else": first_step(4, {"tokens": 1}),
    "counts of nothing": put(end={}),
    "counts that are text": put(end="abc"),
    "a cached count below nothing": put(cached=-5),
    "an embedding of text": put(hidden=["a"]),
    "prompt log-probabilities of nothing": put(prompt_logprobs=[None]),
    "the end before the end": put(done=True, found=[]),
    "an end of other sequences": put(done=True, found=[[None, None, "length"]] * 3),
    "an error that says nothing": put(error=None),
    "an error without words": put(error={"kind": "ConfigError"}),
}


@pytest.mark.parametrize("change", PARTS.values(), ids=PARTS)
def test_a_replica_that_makes_no_sense_is_lost_and_its_request_goes_on(
    folder: Path, hosts: list[EngineHost], expected: list[int], change: Change
) -> None:
    async def serve() -> tuple[list[int], list[str], int]:
        replicas = [Broken(hosts[0], "r0", change), LocalReplica(hosts[1], "r1")]
        engine, pool, _ = await fleet_of(folder, replicas)
        output = await engine.generate("hello world", PARAMS)
        left, lost = [member.name for member in pool.members], pool.lost
        pool.close()
        return list(output.token_ids), left, lost

    assert asyncio.run(serve()) == (expected, ["r1"], 1)


STATUSES: dict[str, Change] = {
    "nothing": lambda status: {},
    "no blocks": without("holds"),
    "no counts": without("tokens"),
    "no life": without("alive"),
    "life that is text": put(alive="perhaps"),
    "counts that are text": put(running="many"),
    "sources of nothing": put(sources={"ngram": None}),
    "a source of two counts": put(sources={"ngram": [1, 2]}),
    "texts of nothing": put(learned=[None]),
    "a text of words": put(learned=[["domain", "tenant", "hello"]]),
    "blocks that are numbers": put(holds=[1, 2]),
    "knowledge that is a list": put(knows=[1]),
}


@pytest.mark.parametrize("change", STATUSES.values(), ids=STATUSES)
def test_a_replica_whose_status_makes_no_sense_is_lost(folder: Path, hosts: list[EngineHost], change: Change) -> None:
    class Odd(LocalReplica):
        asked = 0

        async def status(self) -> Message:
            self.asked += 1
            status = await super().status()
            return status if self.asked == 1 else change(status)

    async def serve() -> list[str]:
        engine, pool, _ = await fleet_of(folder, [Odd(hosts[0], "r0"), LocalReplica(hosts[1], "r1")])
        for _ in range(1000):
            if len(pool.members) == 1:
                break
            await asyncio.sleep(0.005)
        await engine.generate("hello", PARAMS)
        pool.counts()
        pool.close()
        return [member.name for member in pool.members]

    assert asyncio.run(serve()) == ["r1"]


class Failing(LocalReplica):
    """As an engine of which a step fails."""

    async def run(self, message: Message) -> AsyncGenerator[Message]:
        async for part in super().run(message):
            yield part
            yield {"error": {"kind": "", "text": "CUDA said: another caller's secret", "param": None}}


@pytest.mark.parametrize("failing", [1, 2])
def test_a_failure_of_one_request_costs_no_replica(
    folder: Path, hosts: list[EngineHost], expected: list[int], failing: int
) -> None:
    async def serve() -> tuple[list[int] | str, int]:
        replicas = [Failing(hosts[0], "r0"), (Failing if failing == 2 else LocalReplica)(hosts[1], "r1")]
        engine, pool, _ = await fleet_of(folder, replicas)
        found: list[int] | str
        try:
            found = list((await engine.generate("hello world", PARAMS)).token_ids)
        except OutriderError as error:
            found = str(error)
        left = len(pool.members)
        pool.close()
        return found, left

    found, left = asyncio.run(serve())
    assert left == 2
    if failing == 1:
        assert found == expected
    else:
        assert found == "the server failed to answer this request; its log says why"


def test_an_engine_that_raises_says_so_and_goes_on(hosts: list[EngineHost], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no step")

    async def ask() -> list[Message]:
        return [part async for part in hosts[0].run({"request_id": "", "requests": [{}], "name": "x"})]

    monkeypatch.setattr(engine_host, "make_requests", fail)
    assert asyncio.run(ask()) == [{"error": {"kind": "", "text": "no step", "param": None}}]
    assert hosts[0].alive


def test_a_replica_that_cannot_be_described_is_never_used(folder: Path, hosts: list[EngineHost]) -> None:
    odd: list[Message] = [{}, {"fingerprint": ""}, {"config": {"max_batch_size": 0}}, {"pid": "x"}, {"config": None}]

    async def serve() -> int:
        replicas = []
        for number, changes in enumerate(odd):
            replica = LocalReplica(hosts[0], f"odd{number}")
            given = (hosts[0].description() | changes) if changes else {}

            async def describe(given: Message = given) -> Message:
                return given

            replica.describe = describe  # type: ignore[method-assign]
            replicas.append(replica)
        _, pool, _ = await fleet_of(folder, [LocalReplica(hosts[1], "good")])
        for replica in replicas:
            pool.add(replica)
        while len(pool.watched) > 1:
            await asyncio.sleep(0.001)
        pool.close()
        return len(pool.members)

    assert asyncio.run(asyncio.wait_for(serve(), 30)) == 1


def test_what_is_lost_is_named_without_what_was_said() -> None:
    from outrider_fleet.messages.checks import check_part

    with pytest.raises(ReplicaLostError) as caught:
        check_part("r0", {"i": 0, "steps": [["another caller's secret", "target", "none", None, None]]}, 1, 100)
    assert "secret" not in str(caught.value)
