"""The number of replicas, where they run, and the routing of requests. Every field is a flag of ``serve``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from outrider.errors import ConfigError

PolicyName = Literal["prefix", "session", "least_load", "round_robin", "random"]
POLICIES: tuple[str, ...] = get_args(PolicyName)


@dataclass(frozen=True, kw_only=True)
class FleetSettings:
    """Validates itself."""

    replicas: str | None = None
    """Engines: N, or MIN:MAX by load."""
    fleet: Literal["ray", "processes"] = "ray"
    """Where replicas run: ray (Ray Serve, on one machine or a cluster) or processes (of this machine)."""
    ray_address: str | None = None
    """The cluster's, as ray.init takes it.

    None: that of RAY_ADDRESS, or one that is started for this server.
    """
    routing: PolicyName = "prefix"
    """Which replica serves a request: prefix, session, least_load, round_robin or random."""
    share_drafts: bool = True
    """Let replicas draft from responses that others gave to the same caller."""
    traces: bool = False
    """Send OpenTelemetry traces, as the OTEL_* variables say."""

    def __post_init__(self) -> None:
        if self.fleet not in ("ray", "processes"):
            raise ConfigError(f"fleet={self.fleet!r} is unknown: use ray or processes")
        if self.routing not in POLICIES:
            raise ConfigError(f"routing={self.routing!r} is unknown: use {', '.join(POLICIES)}")
        if self.ray_address is not None and self.fleet != "ray":
            raise ConfigError("ray_address is for replicas on Ray: leave it out, or use --fleet ray")
        if self.replicas is not None:
            self.bounds  # noqa: B018  it checks them

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the most replicas. Raises ConfigError if they cannot be read."""
        least, colon, most = str(self.replicas).partition(":")
        try:
            numbers = int(least), int(most if colon else least)
        except ValueError:
            numbers = (0, 0)
        if not 1 <= numbers[0] <= numbers[1]:
            raise ConfigError(f"replicas={self.replicas!r} is not valid: write a number, as 4, or two, as 1:4")
        return numbers
