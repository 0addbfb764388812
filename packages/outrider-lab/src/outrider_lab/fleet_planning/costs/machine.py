"""Step costs and draft acceptance of a replica: measured, read from a file, or from a roofline."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from outrider.config import EngineConfig
from outrider.engine.memory_plan import BLOCK_SIZE
from outrider.errors import ConfigError, InvalidRequestError
from outrider_lab.cost import DraftCost, LatencyCurve
from outrider_lab.fleet_planning.costs.draft_model import MAX_K, SimulatedDraft
from outrider_lab.priors import expected_alpha
from outrider_lab.roofline import BANDWIDTH_EFFICIENCY, Hardware, ModelSize, Roofline, devices_needed
from outrider_lab.theory import chain_tokens

_DEFAULTS = EngineConfig(model="")
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True)
class Machine:
    """A replica's engine: the seconds of a step, and its limits.

    seconds = T(rows) + overhead + per_sequence * requests + per_context_token * tokens that they attend to
              - per_silent_row * rows of prompts + drafting
    """

    target: LatencyCurve
    overhead: float = 0.0  # seconds a step
    per_sequence: float = 0.0  # seconds
    per_context_token: float = 0.0  # seconds
    per_silent_row: float = 0.0  # seconds that a prompt's row without logits saves
    request_seconds: float = 0.0  # from the client to the router, without the ingress's work
    request_jitter: float = 0.0  # seconds of random delay on top of request_seconds, on average
    response_seconds: float = 0.0  # from the end of a step to the client, without the ingress's work
    ingress_per_request: float = 0.0  # seconds of work, one request at a time: HTTP, template, tokens
    ingress_per_token: float = 0.0  # seconds of work, one token at a time: text, an event of the stream
    max_batch_size: int = _DEFAULTS.max_batch_size
    max_batched_tokens: int = _DEFAULTS.max_batched_tokens
    kv_tokens: int = 1 << 20
    block_size: int = BLOCK_SIZE
    kv_bytes_per_token: float = 0.0
    prefix_reuse: bool = True
    draft: SimulatedDraft | None = None
    name: str = ""

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "max_batched_tokens", "kv_tokens", "block_size"):
            if getattr(self, name) < 1:
                raise InvalidRequestError(f"{name}={getattr(self, name)} is not valid: use at least 1", param=name)
        if self.max_batched_tokens < self.max_batch_size:
            raise InvalidRequestError(
                f"max_batched_tokens={self.max_batched_tokens} is less than max_batch_size={self.max_batch_size}: "
                "every running request needs a token of a step", param="max_batched_tokens",
            )  # fmt: skip

    @property
    def beside_seconds(self) -> float:
        """Least seconds of a lone request before its first step and after its last."""
        return self.request_seconds + self.ingress_per_request + self.ingress_per_token + self.response_seconds

    @cached_property
    def seconds_by_rows(self) -> list[float]:
        """Seconds of a step with 0 to ``max_batched_tokens`` rows: T(rows) plus the fixed cost."""
        return [self.overhead, *(self.target(rows) + self.overhead for rows in range(1, self.max_batched_tokens + 1))]

    def step_seconds(self, rows: int, sequences: int, context: float, silent: int = 0) -> float:
        """Seconds of a step, without drafting; ``silent`` of its ``rows`` have no logits."""
        found = self.seconds_by_rows[rows] + self.per_sequence * sequences + self.per_context_token * context
        return max(self.seconds_by_rows[1], found - self.per_silent_row * silent) if silent else found

    @cached_property
    def draft_lengths(self) -> list[int]:
        """Draft tokens for each request, by the number of requests that decode in a step."""
        draft = self.draft
        if draft is None:
            return [0] * (self.max_batch_size + 1)
        if draft.spec_length != "auto":
            return [draft.spec_length] * (self.max_batch_size + 1)
        return [0, *(self._best_length(draft, batch) for batch in range(1, self.max_batch_size + 1))]

    def _best_length(self, draft: SimulatedDraft, batch: int) -> int:
        """The K with the most tokens a second. A request without a draft in a step adds one row and one token."""
        rates, cost = draft.rates or (0.0,), DraftCost(per_token=draft.seconds)
        rates = (*rates, *[rates[-1]] * MAX_K)[:MAX_K]

        def speed(k: int) -> float:
            tokens = 1 + draft.share * (chain_tokens(rates[:k]) - 1)
            rows = batch * (1 + draft.share * k)
            drafting = cost(k, max(1, round(draft.share * batch))) if k else 0.0
            return tokens / (self.target(rows) + self.overhead + self.per_sequence * batch + drafting)

        most = max(0, min(MAX_K, self.max_batched_tokens // batch - 1))
        return max(range(most + 1), key=speed)

    def without_draft(self) -> Machine:
        return replace(self, draft=None)

    def as_dict(self) -> dict[str, Any]:
        """The object that ``from_dict`` reads; milliseconds, as in the JSON of ``outrider plan``."""
        facts: dict[str, Any] = {
            "name": self.name,
            "target_ms_by_rows": {str(rows): round(1e3 * s, 5) for rows, s in self.target.points.items()},
            "overhead_ms": round(1e3 * self.overhead, 5),
            "ms_per_sequence": round(1e3 * self.per_sequence, 5),
            "us_per_context_token": round(1e6 * self.per_context_token, 6),
            "ms_per_silent_row": round(1e3 * self.per_silent_row, 6),
            "request_ms": round(1e3 * self.request_seconds, 4),
            "request_jitter_ms": round(1e3 * self.request_jitter, 4),
            "response_ms": round(1e3 * self.response_seconds, 4),
            "ingress_ms_per_request": round(1e3 * self.ingress_per_request, 4),
            "ingress_ms_per_token": round(1e3 * self.ingress_per_token, 5),
        }
        for name in ("max_batch_size", "max_batched_tokens", "kv_tokens", "block_size", "kv_bytes_per_token"):
            facts[name] = getattr(self, name)
        if self.draft is not None:
            facts["draft"] = {
                "name": self.draft.name,
                "rates": [round(rate, 4) for rate in self.draft.rates],
                "share": round(self.draft.share, 4),
                "ms_by_requests": {str(n): round(1e3 * s, 6) for n, s in self.draft.seconds.points.items()},
                "spec_length": self.draft.spec_length,
            }
        return facts


def from_dict(facts: Mapping[str, Any]) -> Machine:
    """A machine as ``Machine.as_dict`` or ``outrider plan --json`` describes it.

    Raises:
        ConfigError: ``facts`` has another form.
    """
    try:
        draft = facts.get("draft")
        own: dict[str, Any] = {
            name: int(facts[name])
            for name in ("max_batch_size", "max_batched_tokens", "kv_tokens", "block_size")
            if name in facts
        }
        return Machine(
            target=_curve(facts["target_ms_by_rows"]),
            overhead=float(facts.get("overhead_ms", 0)) / 1e3,
            per_sequence=float(facts.get("ms_per_sequence", 0)) / 1e3,
            per_context_token=float(facts.get("us_per_context_token", 0)) / 1e6,
            per_silent_row=float(facts.get("ms_per_silent_row", 0)) / 1e3,
            request_seconds=float(facts.get("request_ms", 0)) / 1e3,
            request_jitter=float(facts.get("request_jitter_ms", 0)) / 1e3,
            response_seconds=float(facts.get("response_ms", 0)) / 1e3,
            ingress_per_request=float(facts.get("ingress_ms_per_request", 0)) / 1e3,
            ingress_per_token=float(facts.get("ingress_ms_per_token", 0)) / 1e3,
            kv_bytes_per_token=float(facts.get("kv_bytes_per_token", 0)),
            name=str(facts.get("name", "")),
            draft=_recommended(facts) if draft is None else SimulatedDraft(
                draft["name"], tuple(draft["rates"]), draft["share"], _curve(draft["ms_by_requests"]),
                draft["spec_length"],
            ),
            **own,
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"machine={facts.get('name', '')!r} is not described: {error!r} is wrong; write the file with "
            "outrider plan --fleet --save-machine FILE, or outrider plan --json"
        ) from None


def read_machine(path: Path) -> Machine:
    """A machine of a JSON file; raises ConfigError or InvalidRequestError."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise InvalidRequestError(f"machine={str(path)!r} cannot be read: {reason}", param="machine") from None
    if not isinstance(facts, dict):
        raise InvalidRequestError(f"machine={str(path)!r} is no JSON object", param="machine")
    return from_dict(facts)


def _curve(points: Mapping[str, float]) -> LatencyCurve:
    return LatencyCurve({int(rows): float(ms) / 1e3 for rows, ms in points.items()})


def _recommended(facts: Mapping[str, Any]) -> SimulatedDraft | None:
    """The draft source that a plan recommends; None for plain decoding."""
    best = facts.get("recommended")
    if not best:
        return None
    source, first = facts["sources"][best["source"]], facts["target_ms_by_rows"]["1"]
    level = float(source["c"]) * float(first) / 1e3
    each = LatencyCurve({n: max(1e-9, n * level) for n in (1, 2)})
    return SimulatedDraft(best["source"], (float(source["alpha"] or 0),), float(source["drafting_share"]), each)


def from_roofline(
    target: ModelSize, hardware: Hardware, *, alpha: float | None = None, draft: ModelSize | None = None,
    devices: int | None = None, max_batch_size: int = 256, max_batched_tokens: int = 2048,
) -> Machine:  # fmt: skip
    """A replica from a hardware's data sheet. ``draft`` None with an α: a draft source without cost."""
    needed = devices_needed(hardware, target, *([draft] if draft else []))
    together = hardware.tensor_parallel(devices or needed)
    run = Roofline(target, together, context=0)
    room = 0.9 * together.memory - target.weight_bytes - (draft.weight_bytes if draft else 0.0)
    if room < target.cache_bytes_per_token * 4096:
        raise InvalidRequestError(
            f"devices={devices} of {hardware.name} cannot hold the weights and a cache: use {2 * needed} or more",
            param="devices",
        )
    speculates = None
    if draft is not None or alpha is not None:
        small = None if draft is None else Roofline(draft, together, context=0)
        seconds = {n: 1e-9 if small is None else small(n) for n in _ROWS if n <= max_batch_size}
        rate = expected_alpha(target, draft) if alpha is None and draft is not None else alpha or 0.0
        speculates = SimulatedDraft("model" if draft else "free", (rate,) * MAX_K, 1.0, LatencyCurve(seconds))
    free = run.free_rows
    rows = sorted({*(n for n in _ROWS if n <= 2 * max_batched_tokens), free, free + 1, 2 * free})
    return Machine(
        target=LatencyCurve({n: run(n) for n in rows}),
        overhead=1e-3,
        per_context_token=target.cache_bytes_per_token / (BANDWIDTH_EFFICIENCY * together.bandwidth),
        max_batch_size=max_batch_size,
        max_batched_tokens=max_batched_tokens,
        kv_tokens=int(room / target.cache_bytes_per_token),
        kv_bytes_per_token=target.cache_bytes_per_token,
        draft=speculates,
        name=f"{target.parameters / 1e9:g}B on {together.name}",
    )
