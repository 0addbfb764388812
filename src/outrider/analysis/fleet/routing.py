"""Which simulated replica gets a request."""

from __future__ import annotations

import bisect
import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from outrider.analysis.fleet.replica import Replica
from outrider.analysis.fleet.workload import Workload
from outrider.errors import InvalidRequestError

VIRTUAL_NODES = 64  # of each replica on the ring
PLACE = 64.0  # prompt tokens to read that a whole batch of requests ahead weighs: they slow each other down


class Router(Protocol):
    """A policy."""

    def choose(self, request: int, replicas: Sequence[Replica]) -> Replica:
        """One of ``replicas``, which are all alive; there is at least one."""
        ...


class _Random:
    """Any of them."""

    def __init__(self, workload: Workload, rng: np.random.Generator) -> None:
        self._rng = rng

    def choose(self, request: int, replicas: Sequence[Replica]) -> Replica:
        return replicas[int(self._rng.integers(len(replicas)))]


class _RoundRobin:
    """In turn."""

    def __init__(self, workload: Workload, rng: np.random.Generator) -> None:
        self._next = 0

    def choose(self, request: int, replicas: Sequence[Replica]) -> Replica:
        self._next += 1
        return replicas[(self._next - 1) % len(replicas)]


class _LeastLoad:
    """The one with the fewest requests."""

    def __init__(self, workload: Workload, rng: np.random.Generator) -> None:
        self._rng = rng

    def choose(self, request: int, replicas: Sequence[Replica]) -> Replica:
        return least_loaded(replicas, int(self._rng.integers(len(replicas))))


class _Session:
    """By a hash of the session on a ring, so that few sessions move when a replica comes or goes."""

    def __init__(self, workload: Workload, rng: np.random.Generator) -> None:
        self._workload = workload
        self._ring: list[tuple[int, int]] = []
        self._names: tuple[int, ...] = ()

    def choose(self, request: int, replicas: Sequence[Replica]) -> Replica:
        names = tuple(replica.number for replica in replicas)
        if names != self._names:
            self._names = names
            self._ring = sorted(
                (_hash(f"{n}/{i}"), place) for place, n in enumerate(names) for i in range(VIRTUAL_NODES)
            )
        place = bisect.bisect(self._ring, (_hash(f"session {self._workload.sessions[request]}"), 0))
        return replicas[self._ring[place % len(self._ring)][1]]


class _Prefix:
    """The one with the least to read before it: of this prompt, of those that wait, and a little for those that run.

    Candidates are the replicas that were given a prompt with the same segments, and the one with the fewest requests.
    """

    def __init__(self, workload: Workload, rng: np.random.Generator) -> None:
        self._workload, self._rng = workload, rng
        self._given: defaultdict[object, dict[int, None]] = defaultdict(dict)

    def choose(self, request: int, replicas: Sequence[Replica]) -> Replica:
        by_number = {replica.number: replica for replica in replicas}
        offset = int(self._rng.integers(len(replicas)))
        first = least_loaded(replicas, offset)
        candidates = {first.number: first}
        names = [name for name, _ in self._workload.segments[request]]
        for name in names:
            candidates |= {n: by_number[n] for n in self._given[name] if n in by_number}
        prompt = int(self._workload.prompts[request])

        def cost(replica: Replica) -> float:
            unread = prompt - replica.cached(request)
            return unread + replica.waiting_tokens + PLACE * replica.load / replica.machine.max_batch_size

        chosen = min(candidates.values(), key=cost)
        for name in names:
            self._given[name][chosen.number] = None
        return chosen


def least_loaded(replicas: Sequence[Replica], first: int = 0) -> Replica:
    """The replica with the fewest requests; of several, the next from place ``first`` on."""
    loads = [replica.load for replica in replicas]
    least = min(loads)
    try:
        return replicas[loads.index(least, first)]
    except ValueError:
        return replicas[loads.index(least)]


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


POLICIES: dict[str, Callable[[Workload, np.random.Generator], Router]] = {
    "random": _Random,
    "round_robin": _RoundRobin,
    "least_load": _LeastLoad,
    "session": _Session,
    "prefix": _Prefix,
}


def router(name: str, workload: Workload, rng: np.random.Generator) -> Router:
    """The policy of this name; raises InvalidRequestError for others."""
    if name not in POLICIES:
        raise InvalidRequestError(f"routing={name!r} is unknown: use one of {', '.join(POLICIES)}", param="routing")
    return POLICIES[name](workload, rng)
