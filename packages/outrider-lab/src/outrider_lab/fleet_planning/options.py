"""Options of ``outrider plan --fleet``, one for each field. Imports little, so that commands start fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from outrider.errors import InvalidRequestError


@dataclass(frozen=True, kw_only=True)
class FleetOptions:
    """Traffic, fleet and promise. None: the option is not given."""

    request_rate: float | None = None
    """Requests a second."""
    input_len: str = "512:256"
    """Tokens that a prompt adds: 512, 64-1024 (uniform) or 512:256 (mean and standard deviation)."""
    output_len: str = "128:64"
    """Tokens of an answer, in the form of --input-len."""
    duration: float = 60.0
    """Seconds in which requests arrive."""
    burstiness: float = 1.0
    """Shape of arrivals: 1 is Poisson, less is bursts."""
    turns: float = 1.0
    """Turns of a conversation, on average; each prompt contains the earlier turns."""
    think_time: float = 10.0
    """Seconds between two turns, on average."""
    prefix_len: int = 0
    """Tokens of a system prompt."""
    num_prefixes: int = 1
    """Number of different system prompts."""
    trace: str | None = None
    """Recorded requests in place of random ones, as JSON lines of Mooncake's format."""
    replicas: int | None = None
    """Replicas of the model; by default the fewest that keep the targets."""
    routing: str = "prefix"
    """prefix, session, least_load, round_robin or random."""
    target_p99: float | None = None
    """Seconds that 99% of answers may take."""
    target_ttft: float | None = None
    """Seconds within which 99% of requests have a first token."""
    machine: str | None = None
    """A replica's costs, from --save-machine or plan --json; by default --model is measured."""
    save_machine: str | None = None
    """Write the measured costs here."""
    draft: str | None = None
    """A draft source to measure and to use; none: without."""
    spec_length: int | Literal["auto"] = "auto"
    """Draft tokens of a request in a step, or auto: the number that gains most at each batch size."""
    draft_machines: int = 0
    """Machines that only draft, for all replicas."""
    network_delay: float = 0.0005
    """Seconds, one way, between machines."""
    prefill_replicas: int = 0
    """Further replicas that only read prompts, and send their cache to the others."""
    transfer_bandwidth: float = 12.5e9
    """Bytes of cache a second that prefill replicas send."""
    mtbf: float | None = None
    """Seconds between two failures of a replica, on average."""
    restart_time: float = 60.0
    """Seconds until a failed replica is back."""
    cores: int | None = None
    """Cores that all replicas share, one thread each; by default each replica has its own machine."""
    max_batch_size: int | None = None
    """Sequences that run at once."""
    max_batched_tokens: int | None = None
    """Tokens of one forward pass."""
    kv_tokens: int | None = None
    """Tokens that the cache holds."""
    seed: int = 0
    """Seed of all random numbers; the same seed gives the same run."""
    plot: str | None = None
    """Write a picture here."""

    def __post_init__(self) -> None:
        if self.trace is not None and self.request_rate is not None:
            raise InvalidRequestError(
                f"request_rate={self.request_rate:g} and trace={self.trace!r}: give one of them, as a trace has its "
                "own times", param="request_rate",
            )  # fmt: skip
        if self.trace is None and self.request_rate is None:
            raise InvalidRequestError("a fleet needs requests: give --request-rate, or --trace", param="request_rate")
        if self.replicas is None and self.target_p99 is None and self.target_ttft is None:
            raise InvalidRequestError(
                "nothing to look for: give --replicas, or --target-p99 or --target-ttft to find how many it takes",
                param="replicas",
            )


def refuse_without_fleet(given: Mapping[str, Any]) -> None:
    """Raise InvalidRequestError if options of a fleet were given to a plan without one."""
    names = {field.name for field in fields(FleetOptions)}
    for name, value in given.items():
        if name in names:
            raise InvalidRequestError(f"{name}={value!r} describes a fleet: add --fleet", param=name)
