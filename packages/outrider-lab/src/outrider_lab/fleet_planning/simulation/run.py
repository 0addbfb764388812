"""A simulation's input and result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.errors import InvalidRequestError
from outrider_lab.fleet_planning.costs.machine import Machine
from outrider_lab.fleet_planning.simulation.replica import ReplicaCounts
from outrider_lab.fleet_planning.workload import Floats, Workload


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """Replicas of a machine, their routing and draft pool."""

    machine: Machine
    replicas: int = 1
    routing: str = "prefix"
    cores: int | None = None  # cores that all replicas share; None: each replica has its own machine
    speeds: Sequence[float] = ()  # speed of each replica by the number of busy ones, if measured
    draft_machines: int = 0  # machines that draft for all replicas
    network_delay: float = 0.0  # seconds, one way, between machines
    prefill_replicas: int = 0  # replicas that only read prompts
    transfer_bandwidth: float = 12.5e9  # bytes of cache a second from prefill replicas to the others
    mtbf: float | None = None  # seconds between two failures of a replica, on average
    restart: float = 60.0  # seconds until a failed replica is back
    kills: Sequence[tuple[float, int]] = ()  # additional failures: time in seconds, and the replica

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
class SimulatedRun:
    """Result of a run. Arrays are [requests], in seconds of simulated time."""

    workload: Workload
    fleet: Fleet
    arrived: Floats
    first: Floats
    finished: Floats
    counts: Sequence[ReplicaCounts]  # of each decoding replica, then of each prefill replica
    resumed: int  # requests that continued on another replica after a failure
    failures: int
    end: float  # time of the last answer
    waiting: float  # requests in the system, integrated over time
    draft_busy: float  # seconds of all draft machines
