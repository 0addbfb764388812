"""Replacing replicas that are processes, while some of them end by themselves, or none can be started."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import OutriderError
from outrider_fleet.ingress import processes
from outrider_fleet.ingress.pool import Member, ReplicaPool
from outrider_fleet.ingress.processes import Processes, ReplicaOptions
from outrider_fleet.ingress.routing import RoundRobinRouter
from outrider_fleet.messages.wire import Message

STATUS: Message = {"alive": True, "running": 0, "waiting": 0, "free_kv_tokens": 9, "steps": 0, "tokens": 0}
STATUS |= {"preemptions": 0, "busy_s": 0.0, "draft_s": 0.0, "sources": {}, "learned": [], "knows": {}, "holds": []}


class Fake:
    """A process that does nothing until it is killed; on its stdin it is told where its socket is to be."""

    def __init__(self) -> None:
        self.returncode: int | None = None
        self.stdin, self._ended = self, asyncio.Event()

    def write(self, data: bytes) -> None:
        Path(json.loads(data)["path"]).touch()

    def kill(self) -> None:
        self.returncode = -9
        self._ended.set()

    async def wait(self) -> int:
        await self._ended.wait()
        return -9


class Answering:
    """The ingress's end of one."""

    def __init__(self, name: str, path: str, token: str) -> None:
        self.name = name

    async def describe(self) -> Message:
        return {"name": self.name, "pid": 1, "fingerprint": "fp", "config": {"max_batch_size": 4}}

    async def status(self) -> Message:
        return STATUS

    async def teach(self, message: Message) -> None: ...


async def fleet(count: int) -> tuple[Processes, ReplicaPool]:
    backend = Processes(ReplicaOptions("tiny", {}), count)

    async def ready(member: Member) -> None:
        backend.ready(member)

    pool = ReplicaPool(RoundRobinRouter(), on_ready=ready, on_lost=backend.lost)
    await backend.start(pool, lambda code: pytest.fail(f"exit code {code}"))
    await filled(pool, count)
    return backend, pool


async def filled(pool: ReplicaPool, count: int) -> None:
    async with asyncio.timeout(10):
        while len(pool.members) != count:
            await asyncio.sleep(0.001)


async def switch(member: Member) -> None: ...


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def started(*command: str, **options: Any) -> Fake:
        return Fake()

    monkeypatch.setattr(asyncio, "create_subprocess_exec", started)
    monkeypatch.setattr(processes, "SocketReplica", Answering)


def test_a_replica_that_ends_while_others_are_replaced_holds_up_nothing() -> None:
    async def serve() -> None:
        backend, pool = await fleet(3)
        before = {member.name for member in pool.members}
        rolling = asyncio.ensure_future(backend.roll(5, switch))
        while not {member.name for member in pool.members} - before:
            await asyncio.sleep(0.001)
        backend.lost(max(before))
        await asyncio.wait_for(rolling, 20)
        await filled(pool, 3)
        assert not before & {member.name for member in pool.members}
        pool.close()
        await backend.close()

    asyncio.run(serve())


def test_asking_often_replaces_all_twice_at_most() -> None:
    async def serve() -> None:
        backend, pool = await fleet(2)
        await asyncio.wait_for(asyncio.gather(*(backend.roll(5, switch) for _ in range(20))), 20)
        await filled(pool, 2)
        assert min(int(member.name[1:]) for member in pool.members) >= 4
        assert max(int(member.name[1:]) for member in pool.members) < 8
        pool.close()
        await backend.close()

    asyncio.run(serve())


def test_fewer_are_wanted_while_they_are_replaced() -> None:
    async def serve() -> None:
        backend, pool = await fleet(3)
        rolling = asyncio.ensure_future(backend.roll(5, switch))
        backend.count = 1
        await asyncio.wait_for(rolling, 20)
        backend.adjust()
        await filled(pool, 1)
        await asyncio.sleep(0.05)
        assert len(pool.members) == 1  # and it stays so
        pool.close()
        await backend.close()

    asyncio.run(serve())


def test_where_no_process_can_be_started_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[int] = []

    async def started(*command: str, **options: Any) -> Fake:
        tries.append(1)
        if len(tries) < 3:
            raise OSError(24, "Too many open files")
        return Fake()

    monkeypatch.setattr(asyncio, "create_subprocess_exec", started)
    monkeypatch.setattr(processes, "SHORTAGE_PAUSE", 0.01, raising=False)

    async def serve() -> None:
        backend, pool = await fleet(1)
        pool.close()
        await backend.close()

    asyncio.run(serve())
    assert "no process can be started for a replica: Too many open files" in caplog.text


def test_a_replica_that_cannot_be_used_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    """As where the ingress cannot read the tokenizer: it would else be loading for ever, and say nothing."""

    async def serve() -> None:
        tries: list[str] = []

        async def ready(member: Member) -> None:
            tries.append(member.name)
            if len(tries) == 1:
                raise OutriderError("no tokenizer")

        pool = ReplicaPool(RoundRobinRouter(), on_ready=ready)
        lost = asyncio.Event()
        pool.on_lost = lambda name: lost.set()
        pool.add(Answering("r0", "", ""))  # type: ignore[arg-type]
        await asyncio.wait_for(lost.wait(), 10)
        assert not pool.members
        pool.close()

    asyncio.run(serve())
    assert "no tokenizer" in caplog.text
