"""``outrider models suggest``: models that people run, by the memory they need, with their forecast speed here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outrider.engine.forecast import forecast_speed
from outrider.engine.memory_plan import config_row_bytes
from outrider.native.context import NativeContext
from outrider.native.library import library
from outrider.native.measure import MachineRates, measure_rates
from outrider.native.processor import num_threads
from outrider.utils.memory import available_memory
from outrider.weights.hub.popular import MEMORIES, PopularModel, popular_models

__all__ = ["larger_model", "memory_class", "needed_bytes", "suggest", "suggest_lines"]

_CONTEXT = 8192  # tokens that a model shall have room for
_SHARE = 0.75  # of a machine's memory: the rest is for other programs
_QUICK = 3e9  # bytes that a token may read: ten a second where memory gives 30 GB/s, as that of a desktop does


def needed_bytes(model: PopularModel) -> int:
    """Of weights, and of keys and values of 8,192 tokens, or the model's whole context."""
    context = min(_CONTEXT, model.config.max_seq_len)
    return model.file_bytes() + context * config_row_bytes(model.config, "bfloat16")


def memory_class(model: PopularModel) -> int | None:
    """The GB of the smallest machine for a model; None: it needs more than any of ``MEMORIES``."""
    needed = needed_bytes(model)
    return next((memory for memory in MEMORIES if needed <= _SHARE * memory * 1e9), None)


def suggest(memory_gb: float | None = None) -> list[dict[str, Any]]:
    """The models for a machine of ``memory_gb``, by default those that fit its free memory now; JSON-ready."""
    room = available_memory() if memory_gb is None else _SHARE * memory_gb * 1e9
    rates = measure_rates(NativeContext(num_threads())) if library() is not None else None
    return [_facts(model, rates) for model in popular_models() if needed_bytes(model) <= room]


def larger_model(room: int | None = None) -> PopularModel | None:
    """The most capable model that ``room`` bytes (None: the free memory) hold well and that answers quickly.

    Capability is the geometric mean of all parameters and those that a token uses, by which mixtures of experts
    compare with dense models. None: no model of the list fits.
    """
    room = available_memory() if room is None else room
    fitting = [m for m in popular_models() if needed_bytes(m) <= _SHARE * room and _read_bytes(m) <= _QUICK]
    return max(fitting, key=lambda model: model.billions * _read_bytes(model), default=None)


def _read_bytes(model: PopularModel) -> float:
    """Bytes of the weights that one token reads."""
    experts = model.config.experts
    share = 1.0 if experts is None else experts.used / experts.count
    return sum(size * (share if ".experts." in name else 1.0) for name, size in model.sizes().items())


def _facts(model: PopularModel, rates: MachineRates | None) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "name": model.name,
        "parameters": round(1e9 * model.billions),
        "type": model.type,
        "file_bytes": model.file_bytes(),
        "needed_bytes": needed_bytes(model),
        "memory_gb": memory_class(model),
        "tools": model.tools,
        "tried_with_published_weights": model.tried,
    }
    if rates is not None:
        speed = forecast_speed(model.config, model.sizes(), 0, rates, min(_CONTEXT, model.config.max_seq_len), "")
        facts["tokens_per_s"] = speed["steps"][0]["tokens_per_s"]
    return facts


def suggest_lines(models: Sequence[Mapping[str, Any]]) -> list[str]:
    """The models for people, the largest first."""
    if not models:
        return ["no model of the list fits: try smollm2-135m-instruct, which is built in"]
    width = max(len(model["name"]) for model in models)
    lines = [f"{'model':{width}} type   file GB needs GB tokens/s tools"]
    for model in reversed(models):
        speed = f"{model['tokens_per_s']:8,.1f}" if "tokens_per_s" in model else f"{'':8}"
        lines.append(
            f"{model['name']:{width}} {model['type']:6} {model['file_bytes'] / 1e9:7,.1f} "
            f"{model['needed_bytes'] / 1e9:8,.1f} {speed} {'yes' if model['tools'] else 'no'}"
        )
    tried = [model["name"] for model in models if model["tried_with_published_weights"]]
    return [
        *lines,
        "tokens/s: forecast without drafts; needs: with 8,192 tokens",
        f"tried here with their published weights: {', '.join(tried) or 'none'}",
    ]
