"""Replicas as processes of this machine: started, watched, started again, more and fewer of them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from outrider_fleet.ingress.pool import Member, ReplicaPool
from outrider_fleet.replica.sockets import SocketReplica

logger = logging.getLogger(__name__)

FIRST_PAUSE, LAST_PAUSE = 0.1, 10.0  # seconds before a replica that ended at once is started again
SHORTAGE_PAUSE = 1.0  # seconds before a process is started that the system refused
WRONG_OPTIONS = 2  # exit code of a replica that will never load
MAX_FAILED_STARTS = 3  # in a row, before any replica was ever ready


@dataclass(frozen=True)
class ReplicaOptions:
    """Options that every replica gets."""

    model: str
    options: dict[str, Any]
    log_level: str = "info"
    log_format: str = "text"
    shares: bool = True
    traces: bool = False


@dataclass(eq=False)
class _Process:
    name: str
    running: asyncio.subprocess.Process
    wanted: bool = True  # False: it has been told to end
    ready: bool = False


class Processes:
    """Keeps as many replicas as are wanted."""

    where, replaces_itself = "as processes of this machine", False

    def __init__(self, given: ReplicaOptions, count: int) -> None:
        self._given, self.count = given, count
        self._folder = tempfile.mkdtemp(prefix="outrider-")  # only its owner can enter
        self._token = secrets.token_hex(32)
        self._numbers = itertools.count()
        self._processes: dict[str, _Process] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._spare: asyncio.subprocess.Process | None = None  # has imported its modules, and waits
        self._preparing = False
        self._starting = 0  # that are not among the processes yet
        self._failed_starts, self._was_ready, self._closing = 0, False, False
        self._rolling, self._roll_waits = asyncio.Lock(), False

    async def start(self, pool: ReplicaPool, on_failure: Callable[[int], None]) -> None:
        """Start replicas for ``pool``. ``on_failure``: called with an exit code if none can be started at all."""
        self._pool, self._on_failure = pool, on_failure
        self.adjust()

    def adjust(self) -> None:
        """Start replicas that are missing, and drain those that are too many, the youngest first."""
        wanted = [process for process in self._processes.values() if process.wanted]
        for _ in range(self.count - len(wanted) - self._starting):
            self._starting += 1
            self._spawn(self._start())
        for process in wanted[self.count :]:
            process.wanted = False
            self._spawn(self._retire(process, 60.0))

    def ready(self, member: Member) -> None:
        """A replica answers for the first time."""
        process = self._processes.get(member.name)
        if process is not None:
            process.ready = self._was_ready = True
            self._failed_starts = 0
            self._spawn(self._prepare_spare())

    def lost(self, name: str) -> None:
        """A replica does not answer any more: its process is killed, and another one takes its place."""
        process = self._processes.get(name)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.running.kill()

    async def roll(self, seconds: float, switch: Callable[[Member], Awaitable[None]]) -> None:
        """Replace every replica by a new one; each old one ends when it has nothing left to do, or after ``seconds``.

        One after another where the new ones say the same. Where the model's files have changed, all new ones are
        started beside the old ones, and ``switch`` is called once they are ready. Called again meanwhile, it begins
        anew afterwards, once.
        """
        if self._roll_waits:
            return
        self._roll_waits = True
        async with self._rolling:
            self._roll_waits = False
            await self._roll(seconds, switch)

    async def _roll(self, seconds: float, switch: Callable[[Member], Awaitable[None]]) -> None:
        old = [each for each in self._processes.values() if each.wanted]
        for number, process in enumerate(old):
            if process.running.returncode is not None:
                continue  # another one is in its place already
            member = await self._start_beside([process])
            if member.fingerprint == self._pool.member(process.name, member).fingerprint:
                await self._retire(process, seconds)
                continue
            if rest := [each for each in old[number + 1 :] if each.running.returncode is None]:
                member = await self._start_beside(rest)
            await switch(member)
            await asyncio.gather(*(self._retire(each, seconds) for each in old[number:]))
            return

    async def _start_beside(self, old: Sequence[_Process]) -> Member:
        """One of the new replicas that will take the places of ``old`` ones, once all of them are ready.

        One of the others where none is needed any more.
        """
        before = set(self._processes)  # those that are starting too
        for process in old:
            process.wanted = False
        self.adjust()
        while True:
            wanted = [each for each in self._processes.values() if each.wanted]
            names = {each.name for each in wanted if each.ready}
            members = [member for member in self._pool.members if member.name in names]
            if not self._starting and len(members) == len(wanted) >= self.count:
                return min(members, key=lambda member: member.name in before)
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        """End all of them."""
        self._closing = True
        for process in list(self._processes.values()):
            self.lost(process.name)
        if self._spare is not None and self._spare.returncode is None:
            self._spare.kill()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, pause: float = 0.0) -> None:
        """Start a replica, and wait until it has ended."""
        name = f"r{next(self._numbers)}"
        path = os.path.join(self._folder, name)
        process = _Process(name, await self._execute(name, path))
        self._processes[name] = process
        self._starting -= 1
        while not os.path.exists(path) and process.running.returncode is None:
            await asyncio.sleep(0.02)
        self._pool.add(SocketReplica(name, path, self._token))
        code = await process.running.wait()
        del self._processes[name]
        if process.wanted and not self._closing:
            self._pool.lose(name)
            await self._replace(process, code, pause)
        else:
            self._pool.remove(name)

    async def _execute(self, name: str, path: str) -> asyncio.subprocess.Process:
        """A process with its options: the spare one if there is one, because imports take seconds."""
        spare, self._spare = self._spare, None
        running = spare if spare is not None and spare.returncode is None else await _waiting_process()
        assert running.stdin is not None
        given = self._given
        told: dict[str, Any] = {
            "name": name,
            "path": path,
            "token": self._token,
            "model": given.model,
            "options": given.options,
        }
        told |= {"log_level": given.log_level, "log_format": given.log_format, "shares": given.shares}
        running.stdin.write(json.dumps({**told, "traces": given.traces}).encode() + b"\n")
        return running

    async def _prepare_spare(self) -> None:
        if self._spare is None and not self._preparing and not self._closing:
            self._preparing = True
            self._spare = await _waiting_process()
            self._preparing = False

    async def _replace(self, process: _Process, code: int, pause: float) -> None:
        logger.warning("replica %s ended with code %d: another one is started", process.name, code)
        self._starting += 1
        if process.ready:
            await self._start()
            return
        self._failed_starts += 1
        if not self._was_ready and (code == WRONG_OPTIONS or self._failed_starts >= MAX_FAILED_STARTS):
            self._on_failure(code)
            return
        pause = min(LAST_PAUSE, max(FIRST_PAUSE, 2 * pause))
        await asyncio.sleep(pause)
        await self._start(pause)

    async def _retire(self, process: _Process, seconds: float) -> None:
        await self._pool.drain(process.name, seconds)
        logger.info("replica %s: drained", process.name)
        self._pool.remove(process.name)
        self.lost(process.name)


async def _waiting_process() -> asyncio.subprocess.Process:
    """A process that will be a replica once it is told which one; waits where the system has none to give."""
    command = (sys.executable, "-m", "outrider_fleet.replica.main")
    while True:
        try:
            return await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE, start_new_session=True)
        except OSError as error:
            logger.error("no process can be started for a replica: %s", error.strerror)
            await asyncio.sleep(SHORTAGE_PAUSE)
