"""Routes simulated requests by a fleet's own policies (``outrider_fleet.ingress.routing``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from outrider.cache.blocks import DIGEST_BLOCK as BLOCK
from outrider.errors import InvalidRequestError
from outrider.utils.suggest import unknown
from outrider_fleet.ingress.routing import MAX_PROMPT, PERIOD, Job, Load, make_router
from outrider_fleet.settings import POLICIES, PolicyName
from outrider_lab.fleet_planning.simulation.replica import SimulatedReplica
from outrider_lab.fleet_planning.workload import Workload

__all__ = ["PERIOD", "Routing", "policy_name"]


def policy_name(name: str) -> PolicyName:
    """``name``, checked. Raises InvalidRequestError for an unknown policy."""
    if name not in POLICIES:
        raise InvalidRequestError(unknown("routing", name, POLICIES), param="routing")
    return name  # type: ignore[return-value]  # it is one of them


@dataclass
class _RoutedSegment:
    """A segment of a routed request."""

    number: int
    start: int  # tokens of a prompt before it
    names: list[str] = field(default_factory=list)  # of the blocks that end in it

    def blocks(self, tokens: int) -> list[str]:
        """Names of the blocks that end in the segment's first ``tokens`` tokens."""
        first = self.start // BLOCK
        count = min(self.start + tokens, MAX_PROMPT) // BLOCK - first
        self.names += [f"{self.number}:{first + i}" for i in range(len(self.names), count)]
        return self.names[: max(0, count)]


class Routing:
    """A router of one policy, with the reports that it receives.

    A prompt's blocks have names in place of digests of their tokens. A block belongs to the segment of its last token::

        segments  | system: 40 tokens | talk: 50 tokens     |
        blocks    | 0:0     | 0:1     | 1:2 | 1:3 | 1:4     |      segment : place in the prompt
    """

    def __init__(self, policy: PolicyName, workload: Workload, seed: int) -> None:
        self._router = make_router(policy, seed)
        self._workload = workload
        self._seen: dict[object, _RoutedSegment] = {}

    def choose(self, request: int, replicas: Sequence[SimulatedReplica]) -> SimulatedReplica:
        """One of ``replicas``; at least one must be given."""
        job = self._job(request)
        name = self._router.choose(job, [Load(r.name, r.load, r.machine.max_batch_size) for r in replicas])
        self._router.routed(job, name)
        return next(replica for replica in replicas if replica.name == name)

    def report(self, replica: SimulatedReplica) -> None:
        """Take a replica's report of its cache, sent every ``PERIOD`` seconds."""
        self._router.report(replica.name, self._held(replica))

    def forget(self, name: str) -> None:
        """Forget a dead replica."""
        self._router.forget(name)

    def _job(self, request: int) -> Job:
        blocks: list[str] = []
        start = 0
        for name, tokens in self._workload.segments[request]:
            blocks += self._seen.setdefault(name, _RoutedSegment(len(self._seen), start)).blocks(tokens)
            start += tokens
        return Job(int(self._workload.prompts[request]), tuple(blocks), str(self._workload.sessions[request]))

    def _held(self, replica: SimulatedReplica) -> Iterator[str]:
        for name, tokens in replica.held():
            yield from self._seen[name].blocks(tokens)
