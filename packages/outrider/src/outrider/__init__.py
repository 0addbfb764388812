"""Outrider: several tokens per run of a language model, without changing what it would have said.

    from outrider import LLM, SamplingParams

Names are imported when they are first used, so that ``import outrider`` and ``outrider --help`` are instant.
Installed distributions bring further ones (``outrider.extensions``): ``speculate``, ``Sound`` and others.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# GNU OpenMP lets waiting threads spin for many milliseconds. Where another process wants the core, the spinning
# thread keeps the working one off it, and a 15 ms run can take a second. 10000 turns (half a millisecond) cover the
# gaps inside a run and no more; 3000 did not on slower cores, and cost a fifth of a run (benchmarks/log.md,
# 2026-11-21). Read once, when torch is first imported.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

if TYPE_CHECKING:
    from outrider.async_llm import AsyncLLM
    from outrider.config import EngineConfig, SamplingParams, SpeculationParams
    from outrider.config.adapters import LoRARequest
    from outrider.config.structured import StructuredOutput
    from outrider.drafters.api import Drafter, Outcome, RequestView
    from outrider.engine.request import StepOutput
    from outrider.errors import OutriderError
    from outrider.llm import LLM
    from outrider.output import Output
    from outrider.verify.draft import Draft

_HOMES = {
    "LLM": "outrider.llm",
    "AsyncLLM": "outrider.async_llm",
    "LoRARequest": "outrider.config.adapters",
    "Draft": "outrider.verify.draft",
    "Drafter": "outrider.drafters.api",
    "EngineConfig": "outrider.config",
    "Outcome": "outrider.drafters.api",
    "Output": "outrider.output",
    "OutriderError": "outrider.errors",
    "RequestView": "outrider.drafters.api",
    "SamplingParams": "outrider.config",
    "SpeculationParams": "outrider.config",
    "StepOutput": "outrider.engine.request",
    "StructuredOutput": "outrider.config.structured",
}

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AsyncLLM",
    "Draft",
    "Drafter",
    "EngineConfig",
    "LoRARequest",
    "Outcome",
    "Output",
    "OutriderError",
    "RequestView",
    "SamplingParams",
    "SpeculationParams",
    "StepOutput",
    "StructuredOutput",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if not name.startswith("_"):
        # ``from outrider import extensions`` would ask this function for the name before it imports the module.
        extensions = import_module("outrider.extensions")
        if extensions.has_extension("names", name):
            return extensions.extension("names", name)
        if extensions.is_known("names", name):
            raise ImportError(str(extensions.missing_extension("names", name, f"outrider.{name}")))
    raise AttributeError(f"module 'outrider' has no attribute {name!r}")


def __dir__() -> list[str]:
    from outrider.extensions import extension_names

    return [*__all__, *extension_names("names")]
