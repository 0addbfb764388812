"""The simulated ingress, which all requests and tokens of a fleet pass: HTTP, tokenizer, text, events."""

from __future__ import annotations

import numpy as np

from outrider_lab.fleet_planning.costs.machine import Machine
from outrider_lab.fleet_planning.workload import Floats


class SimulatedIngress:
    """A queue of requests and tokens, worked on one after another. Calls are in order of time.

    ::

        time     ----- request ---- tokens of a step ------- request ->
        works         [======]     [==][==][==]             [======]
                             ^ is routed  ^ each token is sent after those before it
    """

    def __init__(self, machine: Machine, rng: np.random.Generator) -> None:
        self._machine, self._rng = machine, rng
        self._free = 0.0  # time at which all work so far is done

    def take(self, now: float) -> float:
        """The time at which a request that arrives at ``now`` reaches the router."""
        self._free = max(self._free, now) + self._machine.ingress_per_request
        jitter = self._machine.request_jitter
        late = float(self._rng.exponential(jitter)) if jitter else 0.0
        return self._free + self._machine.request_seconds + late

    def relay(self, now: float, tokens: int) -> Floats:
        """The times at which the tokens of a step that ends at ``now`` reach their clients: float64 [tokens]."""
        each = self._machine.ingress_per_token
        start = max(self._free, now)
        self._free = start + each * tokens
        return np.asarray(start + self._machine.response_seconds + each * np.arange(1, tokens + 1), dtype=np.float64)
