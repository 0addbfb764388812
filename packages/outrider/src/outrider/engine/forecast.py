"""The memory and the speed of a model before it is loaded, from the sizes in its header and this machine's rates.

A pass takes at least as long as its weights take to be read or to be multiplied. It takes ``factor`` times as long, as
passes of other models on this machine did.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outrider.engine.memory_plan import config_row_bytes
from outrider.engine.pass_times import passes_over_limits
from outrider.models.config import ModelConfig
from outrider.models.layer_kinds import num_layer_weights
from outrider.native.measure import MachineRates
from outrider.utils.memory import available_memory

__all__ = ["Forecast", "forecast_error", "forecast_speed", "memory_needed"]

USUAL_FACTOR = 1.2
"""Where no model has been measured on this machine yet."""
MEASURED_CONTEXT = 64
"""Tokens behind which a start times passes of a row."""
_SHOWN_CONTEXT = 4096
_ACCEPTANCES = 0.3, 0.6, 0.9
_LONGEST_DRAFT = 16


def memory_needed(config: ModelConfig, weights: int) -> dict[str, int]:
    """Bytes of weights, cache and state, and the longest text that fits beside ``weights`` bytes of matrices."""
    token = config_row_bytes(config, "bfloat16")
    state = 0 if config.states is None else config.states.sequence_bytes(0)
    free = available_memory()
    room = free - weights - state
    return {
        "weight_bytes": weights,
        "cache_bytes_per_token": token,
        "state_bytes_per_sequence": state,
        "bytes_with_whole_context": weights + state + token * config.max_seq_len,
        "free_bytes": free,
        "longest_text_that_fits": max(0, min(config.max_seq_len, room // token)),
    }


@dataclass(frozen=True)
class Forecast:
    """Seconds of a step of one sequence, from the bytes it reads and the weights it multiplies."""

    config: ModelConfig
    dense: int
    """Bytes of the layers' matrices that every row reads."""
    experts: int
    """Bytes of all experts, of which a row reads some."""
    head: int
    """Bytes of the LM head."""
    drafting: int
    """Bytes that a draft token reads of a draft head; 0: drafts come from the text."""
    rates: MachineRates
    factor: float

    @classmethod
    def of(
        cls, config: ModelConfig, sizes: Mapping[str, int], drafting: int, rates: MachineRates, factor: float
    ) -> Forecast:
        """``sizes``: bytes of the matrices by name, of which the last is the LM head."""
        *layers, head = sizes.items()
        experts = sum(size for name, size in layers if ".experts." in name)
        dense = sum(size for _, size in layers) - experts
        return cls(config, dense, experts, head[1], drafting, rates, factor)

    def bytes_read(self, rows: int = 1) -> int:
        """By a pass of so many rows, which share their experts as if each chose at random."""
        found = self.config.experts
        share = 0.0 if found is None else 1 - (1 - found.used / found.count) ** rows
        return round(self.dense + self.experts * share) + self.head

    def attention_bytes(self, context: int) -> float:
        """Keys and values that a row reads behind ``context`` tokens, in all layers."""
        c = self.config
        cached = sum(c.kv_heads_of(layer) * c.head_dim_of(layer) for layer in c.cache_layers)
        per_number = config_row_bytes(c, "bfloat16") / max(1, cached)
        read = [
            c.kv_heads_of(layer) * c.head_dim_of(layer) * min(context, c.window(layer) or context)
            for layer in c.attention_layers
        ]
        states = 0 if c.states is None else 2 * c.states.sequence_bytes(0)  # read and written
        return per_number * sum(read) + states

    def parts(self, context: int) -> dict[str, float]:
        """Seconds of a step without drafts, by what takes them."""
        passes, read = self._pass(1), self.bytes_read()
        head = passes * self.head / read
        return {"layers": passes - head, "attention": self._attention(context), "lm_head": head}

    def step(self, context: int, rows: int = 1) -> float:
        """Seconds of a step of so many rows, but for drafting."""
        return self._pass(rows) + self._attention(context)

    def draft_token(self) -> float:
        """Seconds to draft a token."""
        return self.factor * self.rates.memory_limit(self.drafting)

    def with_drafts(self, acceptance: float, context: int) -> tuple[float, int]:
        """Tokens a second if each draft token is right with this probability, and the best length of drafts."""
        steps = {length: self.step(context, 1 + length) for length in range(_LONGEST_DRAFT + 1)}
        return _best(acceptance, steps, self.draft_token())

    def _pass(self, rows: int) -> float:
        c = self.config
        weights = num_layer_weights(c, used=True) + c.vocab_size * c.hidden_size
        memory = self.rates.memory_limit(self.bytes_read(rows))
        return self.factor * max(memory, self.rates.arithmetic_limit(weights, rows))

    def _attention(self, context: int) -> float:
        return self.factor * self.rates.memory_limit(round(self.attention_bytes(context)))


def _best(acceptance: float, steps: Mapping[int, float], draft_token: float) -> tuple[float, int]:
    """Tokens a second and the length of drafts, the best of ``steps``: seconds by length, but for drafting."""

    def rate(length: int) -> float:
        return sum(acceptance**i for i in range(length + 1)) / (steps[length] + length * draft_token)

    best = max(steps, key=rate)
    return rate(best), best


def measured_with_drafts(ms_by_rows: Mapping[str, float], draft_token_ms: float) -> list[dict[str, Any]]:
    """As ``with_drafts`` of ``forecast_speed``, from measured passes."""
    steps = {int(rows) - 1: ms / 1e3 for rows, ms in ms_by_rows.items()}
    return [_drafted(acceptance, *_best(acceptance, steps, draft_token_ms / 1e3)) for acceptance in _ACCEPTANCES]


def _drafted(acceptance: float, speed: float, length: int) -> dict[str, Any]:
    return {"acceptance": acceptance, "tokens_per_s": round(speed, 2), "draft_tokens": length}


def forecast_speed(
    config: ModelConfig, sizes: Mapping[str, int], drafting: int, rates: MachineRates, longest: int, own: str
) -> dict[str, Any]:
    """The JSON-ready forecast of a model.

    Args:
        sizes: as in ``Forecast.of``.
        drafting: bytes that a draft token reads of a draft head.
        longest: the longest context that fits.
        own: the name of the model's kept times, which do not count for the factor.
    """
    found = passes_over_limits(rates.read_gb_s, own)
    factor = sorted(found)[len(found) // 2] if found else USUAL_FACTOR
    forecast = Forecast.of(config, sizes, drafting, rates, factor)
    shown = max(1, min(_SHOWN_CONTEXT, longest))
    contexts = sorted({min(MEASURED_CONTEXT, shown), shown, max(1, longest)})
    return {
        "factor": round(factor, 3),
        "factor_from_models": len(found),
        "steps": [_step(forecast, context) for context in contexts],
        "shown_context": shown,
        "draft_token_ms": round(1e3 * forecast.draft_token(), 3),
        "with_drafts": [_drafted(share, *forecast.with_drafts(share, shown)) for share in _ACCEPTANCES],
    }


def _step(forecast: Forecast, context: int) -> dict[str, Any]:
    seconds = forecast.step(context)
    parts = {name: round(1e3 * part, 3) for name, part in forecast.parts(context).items()}
    return {"context": context, "ms": round(1e3 * seconds, 3), "tokens_per_s": round(1 / seconds, 2), "parts_ms": parts}


def forecast_error(forecast: Mapping[str, Any], measured_ms: float) -> float:
    """How much longer a measured step without drafts took, behind few tokens, than forecast: 0.1 is a tenth."""
    expected: float = forecast["steps"][0]["ms"]
    return round(measured_ms / expected - 1, 3)
