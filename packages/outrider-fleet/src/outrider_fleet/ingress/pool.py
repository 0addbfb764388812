"""The replicas of a model as an ingress knows them: their states, their loads, and the choice of one for a request."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace

from outrider.engine.engine_stats import EngineStats
from outrider_fleet.ingress.front import add_counts
from outrider_fleet.ingress.routing import PERIOD, Job, Load, Router
from outrider_fleet.messages.checks import check_description, check_status
from outrider_fleet.messages.replica import Replica, ReplicaLostError
from outrider_fleet.messages.wire import Message
from outrider_fleet.replica.draft_sharing import Hub

logger = logging.getLogger(__name__)

GONE = "gone"  # in counts, in place of the name of a replica that is no more
UNANSWERED = 2  # looks in a row after which a replica counts as lost


@dataclass
class Member:
    """A replica that is ready."""

    replica: Replica
    description: Message
    status: Message | None = None
    sequences: int = 0  # that run or wait there for this ingress
    draining: bool = False
    requests: int = 0  # ever
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        return self.replica.name

    @property
    def fingerprint(self) -> str:
        fingerprint: str = self.description["fingerprint"]
        return fingerprint

    @property
    def places(self) -> int:
        places: int = self.description["config"]["max_batch_size"]
        return places


class ReplicaPool:
    """Watches replicas from when they are added until they are lost, and routes between those that are ready."""

    def __init__(
        self,
        router: Router,
        *,
        shares: bool = True,
        on_ready: Callable[[Member], Awaitable[None]] | None = None,
        on_lost: Callable[[str], None] = lambda name: None,
        period: float = PERIOD,
    ) -> None:
        """``shares``: whether replicas learn from each other. ``on_lost``: told of a replica that is ready no more."""
        self._router, self._shares, self._period = router, shares, period
        self._on_ready, self.on_lost = on_ready, on_lost
        self._members: dict[str, Member] = {}
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Condition()
        self.hub = Hub()
        self.gone = EngineStats()  # counts of replicas that are no more
        self.lost = 0
        self.routed: Counter[str] = Counter()  # prompts, by replica; those of replicas that are no more under GONE
        self.relayed: Counter[str] = Counter()  # likewise tokens

    @property
    def members(self) -> list[Member]:
        """Those that are ready, those that drain included."""
        return list(self._members.values())

    @property
    def open(self) -> list[Member]:
        """Those that take new requests."""
        return [member for member in self._members.values() if not member.draining]

    @property
    def watched(self) -> frozenset[str]:
        """Those that were added and not lost, ready or not."""
        return frozenset(self._watching)

    def member(self, name: str, other: Member) -> Member:
        """The one of this name, or ``other`` where it is not ready."""
        return self._members.get(name, other)

    def add(self, replica: Replica) -> None:
        """Take in a replica; it is used once it answers."""
        self._watching[replica.name] = asyncio.ensure_future(self._watch(replica))

    def remove(self, name: str) -> None:
        """Forget a replica that has gone, or is to go."""
        task = self._watching.pop(name, None)
        if task is not None:
            task.cancel()
        self._drop(name)

    async def drain(self, name: str, seconds: float) -> None:
        """Give a replica nothing new, and wait until it has nothing left to do for this ingress, but not for ever."""
        member = self._members.get(name)
        if member is None:
            return
        member.draining = True
        member.idle.clear()
        if member.sequences:
            try:
                await asyncio.wait_for(member.idle.wait(), seconds)
            except TimeoutError:
                logger.warning("%s still has %d sequences: others go on with them", name, member.sequences)

    async def pick(self, job: Job, fingerprint: str, avoid: Collection[str] = ()) -> Member:
        """The replica for a job; waits until there is one. ``avoid``: only where there is no other."""
        async with self._changed:
            while True:
                fitting = [member for member in self.open if member.fingerprint == fingerprint]
                fitting = [member for member in fitting if member.name not in avoid] or fitting
                if fitting:
                    break
                await self._changed.wait()
        by_name = {member.name: member for member in fitting}
        loads = [
            Load(m.name, m.sequences, m.places, m.status["knows"] if m.status is not None else {}) for m in fitting
        ]
        chosen = by_name[self._router.choose(job, loads)]
        self._router.routed(job, chosen.name)
        self.routed[chosen.name] += 1
        return chosen

    def relay(self, member: Member, tokens: int) -> None:
        """Count tokens that came from a replica."""
        self.relayed[member.name if member.name in self._members else GONE] += tokens

    def begin(self, member: Member, count: int) -> None:
        """Count sequences that are sent to a replica."""
        member.sequences += count
        member.requests += 1

    def end(self, member: Member, count: int) -> None:
        """They have ended there, however that was."""
        member.sequences -= count
        if not member.sequences:
            member.idle.set()

    def lose(self, name: str) -> None:
        """A replica has died, or broke off a call; that is told and counted once."""
        if name not in self._watching:
            return
        if name in self._members:
            self.lost += 1
        self.remove(name)
        self.on_lost(name)

    def counts(self) -> tuple[EngineStats, int]:
        """The counts of all replicas, lost ones included; and the room in the caches of the present ones."""
        total, free = replace(self.gone, sources=dict(self.gone.sources)), 0
        for member in self.members:
            if (status := member.status) is not None:
                add_counts(total, status)
                total.running += status["running"]
                total.waiting += status["waiting"]
                free += status["free_kv_tokens"]
        return total, free

    def close(self) -> None:
        for task in self._watching.values():
            task.cancel()

    async def _watch(self, replica: Replica) -> None:
        name = replica.name
        try:
            description = await replica.describe()
            check_description(name, description)
            member = Member(replica, description)
            member.status = await self._status(replica)
            self.hub.join(name)
            self._members[name] = member
            if self._on_ready is not None:
                await self._on_ready(member)
            async with self._changed:
                self._changed.notify_all()
            await self._look(member)
        except ReplicaLostError as error:
            logger.warning("replica %s is lost: %s", name, error)
            self.lose(name)
        except Exception:
            logger.exception("replica %s cannot be used", name)
            self.lose(name)

    async def _look(self, member: Member) -> None:
        """Until the replica is lost: ask for its status, and pass on the responses that the others have learned."""
        unanswered = 0
        while True:
            await asyncio.sleep(self._period)
            try:
                status = await self._status(member.replica)
                unanswered = 0
                member.status = status
                self._router.report(member.name, status["holds"])
                if self._shares and (news := self.hub.swap(member.name, status["learned"])):
                    await member.replica.teach({"learned": news})
                if not status["alive"]:
                    raise ReplicaLostError(f"{member.name}: its engine has stopped")
            except ReplicaLostError:
                unanswered += 1
                if unanswered >= UNANSWERED:
                    raise

    async def _status(self, replica: Replica) -> Message:
        status = await replica.status()
        check_status(replica.name, status)
        return status

    def _drop(self, name: str) -> None:
        member = self._members.pop(name, None)
        if member is not None and member.status is not None:
            add_counts(self.gone, member.status)
        for counts in (self.routed, self.relayed):  # by names that are never used again
            if name in counts:
                counts[GONE] += counts.pop(name)
        self._router.forget(name)
        self.hub.leave(name)
