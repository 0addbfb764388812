"""The choice of a replica for a request: by session, by cached blocks of its prompt, and by load. No I/O, no clock.

The cost of a replica is counted in prompt tokens to read: tokens that its cache does not hold, and the work that
it already has. It is credited for the session's earlier requests, and for knowing texts of the same domain::

    prompt  | system prompt | turn 1 | turn 2 | question      blocks, each named by all before it and by its domain
    r0        hit             hit      hit                    reads 1 block, 3 of 4 places taken
    r1        hit                                             reads 3 blocks, idle
"""

from __future__ import annotations

import bisect
import hashlib
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from outrider.cache.blocks import DIGEST_BLOCK as BLOCK
from outrider.cache.blocks import chain_digests
from outrider_fleet.settings import PolicyName

MAX_BLOCKS = 1 << 16  # of one replica that are remembered between two of its reports
MAX_PROMPT = 512 * BLOCK  # tokens of a prompt that are looked at
VIRTUAL_NODES = 64  # of each replica on the ring
BUSY = 64.0  # tokens to read that a place taken of all places weighs: others decode more slowly beside it
QUEUED = 512.0  # tokens to read that a whole batch ahead of it weighs
HOME = 48.0  # tokens to read that the session's own replica may have more
KNOWN = 16.0  # the same for a replica whose draft sources know texts of the domain
PERIOD = 0.5  # seconds between two reports of a replica


def block_names(tokens: Sequence[int], domain: str) -> tuple[str, ...]:
    """The name of each whole block of a prompt, comparable with a replica's ``KVCache.held_digests``."""
    return tuple(digest.hex() for digest in chain_digests(tokens, BLOCK, domain))


@dataclass(frozen=True)
class Job:
    """The facts of a request that a router uses."""

    tokens: int  # of its prompt
    blocks: tuple[str, ...] = ()
    session: str = ""  # empty: none
    domain: str = ""


@dataclass(frozen=True)
class Load:
    """The facts of a replica that a router uses."""

    name: str
    sequences: int = 0  # running or waiting
    places: int = 1  # that can run at once
    knows: Mapping[str, int] = field(default_factory=dict)  # bytes of earlier responses, by domain


class Router(Protocol):
    """A policy."""

    def choose(self, job: Job, loads: Sequence[Load]) -> str:
        """The name of one of ``loads``, of which there is at least one."""
        ...

    def routed(self, job: Job, name: str) -> None:
        """A replica is reading a job's prompt now."""
        ...

    def report(self, name: str, blocks: Iterable[str]) -> None:
        """A replica says which blocks its cache holds."""
        ...

    def forget(self, name: str) -> None:
        """A replica has gone, with all that it held."""
        ...


class RandomRouter:
    """A random replica: the baseline for the other policies."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)

    def choose(self, job: Job, loads: Sequence[Load]) -> str:
        return self._random.choice(loads).name

    def routed(self, job: Job, name: str) -> None:
        """Nothing to learn."""

    def report(self, name: str, blocks: Iterable[str]) -> None:
        """Nothing to learn."""

    def forget(self, name: str) -> None:
        """Nothing to forget."""


class RoundRobinRouter(RandomRouter):
    """Each in turn."""

    _turn = -1

    def choose(self, job: Job, loads: Sequence[Load]) -> str:
        self._turn += 1
        return sorted(load.name for load in loads)[self._turn % len(loads)]


class LeastLoadRouter(RandomRouter):
    """The one with the most free places; of several, any."""

    def choose(self, job: Job, loads: Sequence[Load]) -> str:
        shares = [load.sequences / load.places for load in loads]
        least = min(shares)
        return self._random.choice([load for load, share in zip(loads, shares, strict=True) if share == least]).name


class Ring:
    """Consistent hashing: when a replica comes or goes, only its own share of the keys moves."""

    def __init__(self, names: Sequence[str]) -> None:
        points = [(_point(f"{name}/{i}"), name) for name in names for i in range(VIRTUAL_NODES)]
        self._points = sorted(points)

    def home(self, key: str) -> str:
        """The owner of a key."""
        at = bisect.bisect(self._points, (_point(key), ""))
        return self._points[at % len(self._points)][1]


def _point(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big")


class SessionRouter(RandomRouter):
    """By consistent hashing of session and domain; without a session, the less loaded of two at random."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(seed)
        self._rings: tuple[tuple[str, ...], Ring] = ((), Ring(()))

    def choose(self, job: Job, loads: Sequence[Load]) -> str:
        return self.home(job, loads) or self.lighter(loads)

    def home(self, job: Job, loads: Sequence[Load]) -> str | None:
        """The replica of the job's session, if it has one."""
        if not job.session:
            return None
        names = tuple(sorted(load.name for load in loads))
        if self._rings[0] != names:
            self._rings = (names, Ring(names))
        return self._rings[1].home(f"{job.domain}/{job.session}")

    def lighter(self, loads: Sequence[Load]) -> str:
        """The power of two choices."""
        two = self._random.sample(list(loads), min(2, len(loads)))
        return min(two, key=lambda load: load.sequences / load.places).name


@dataclass
class _Held:
    """Blocks that a replica holds: by its last report, and by the prompts routed to it since the report before."""

    said: frozenset[str] = frozenset()
    recent: set[str] = field(default_factory=set)
    older: set[str] = field(default_factory=set)

    def tokens(self, job: Job) -> int:
        """Of the prompt's beginning."""
        for number, block in enumerate(job.blocks):
            if block not in self.said and block not in self.recent and block not in self.older:
                return number * BLOCK
        return len(job.blocks) * BLOCK


class PrefixRouter(SessionRouter):
    """Where least is left to read and to wait for; see the top of this file."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(seed)
        self._held: dict[str, _Held] = {}

    def choose(self, job: Job, loads: Sequence[Load]) -> str:
        home = self.home(job, loads)
        costs = {load.name: self._cost(job, load, load.name == home) for load in loads}
        least = min(costs.values())
        return self.lighter([load for load in loads if costs[load.name] == least])

    def routed(self, job: Job, name: str) -> None:
        recent = self._held.setdefault(name, _Held()).recent
        if len(recent) < MAX_BLOCKS:
            recent.update(job.blocks)

    def report(self, name: str, blocks: Iterable[str]) -> None:
        held = self._held.setdefault(name, _Held())
        held.said, held.older, held.recent = frozenset(blocks), held.recent, set()

    def forget(self, name: str) -> None:
        self._held.pop(name, None)

    def _cost(self, job: Job, load: Load, is_home: bool) -> float:
        held = self._held[load.name].tokens(job) if load.name in self._held else 0
        queued = max(0, load.sequences + 1 - load.places)
        cost = job.tokens - held + BUSY * min(load.sequences, load.places) / load.places + QUEUED * queued / load.places
        return cost - HOME * is_home - KNOWN * bool(load.knows.get(job.domain))


def make_router(policy: PolicyName, seed: int | None = None) -> Router:
    """One of ``POLICIES``."""
    kinds: dict[PolicyName, type[RandomRouter]] = {
        "prefix": PrefixRouter,
        "session": SessionRouter,
        "least_load": LeastLoadRouter,
        "round_robin": RoundRobinRouter,
        "random": RandomRouter,
    }
    return kinds[policy](seed)
