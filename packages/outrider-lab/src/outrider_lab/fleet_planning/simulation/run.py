"""Input and result of a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.errors import InvalidRequestError
from outrider_lab.fleet_planning.costs.machine import Machine
from outrider_lab.fleet_planning.simulation.replica import Counts
from outrider_lab.fleet_planning.workload import Floats, Workload


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """Replicas of a machine, their routing and draft pool."""

    machine: Machine
    replicas: int = 1
    routing: str = "prefix"
    cores: int | None = None  # that all replicas share; None: each has a machine of its own
    speeds: Sequence[float] = ()  # of each replica by the number that are busy, where that was measured
    draft_machines: int = 0  # that draft for all replicas
    network_delay: float = 0.0  # seconds, one way, between machines
    prefill_replicas: int = 0  # that only read prompts
    transfer_bandwidth: float = 12.5e9  # bytes a second of cache from those to the others
    mtbf: float | None = None  # seconds between two failures of a replica, on average
    restart: float = 60.0  # seconds a failed replica is away
    kills: Sequence[tuple[float, int]] = ()  # seconds, and which replica dies then, besides

    def __post_init__(self) -> None:
        for name in ("replicas", "cores", "mtbf", "restart", "transfer_bandwidth"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise InvalidRequestError(f"{name}={value} is not valid: use a positive number", param=name)
        for name in ("draft_machines", "network_delay", "prefill_replicas"):
            if getattr(self, name) < 0:
                raise InvalidRequestError(f"{name}={getattr(self, name)} is not valid: use 0 or more", param=name)
        if self.draft_machines and self.machine.draft is None:
            raise InvalidRequestError(
                f"draft_machines={self.draft_machines}, but there is no draft source: give one", param="draft_machines"
            )


@dataclass(frozen=True)
class Run:
    """Result of a run. Arrays are [requests], in seconds of simulated time."""

    workload: Workload
    fleet: Fleet
    arrived: Floats
    first: Floats
    finished: Floats
    counts: Sequence[Counts]  # of each replica, then of each that only reads
    resumed: int  # requests that went on elsewhere after a failure
    failures: int
    end: float  # seconds, of the last answer
    waiting: float  # requests in the system, integrated over time
    draft_busy: float  # seconds of all draft machines
