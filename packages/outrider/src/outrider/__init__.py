"""Outrider: several tokens per run of a language model, without changing what it would have said.

    from outrider import LLM, SamplingParams

Names are imported when they are first used, so that ``import outrider`` and ``outrider --help`` are instant.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# GNU OpenMP lets waiting threads spin for many milliseconds. Where another process wants the core, the spinning
# thread keeps the working one off it, and a 15 ms run can take a second. 10000 turns (half a millisecond) cover the
# gaps inside a run and no more; 3000 did not on slower cores, and cost a fifth of a run (docs/log.md, 2026-11-21).
# Read once, when torch is first imported.
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
    from outrider_lab.speculation import speculate, speculate_async
    from outrider_multimodal.speech import Sound, Transcript, TranscriptionOptions

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
    "Sound": "outrider_multimodal.speech",
    "SpeculationParams": "outrider.config",
    "StepOutput": "outrider.engine.request",
    "StructuredOutput": "outrider.config.structured",
    "Transcript": "outrider_multimodal.speech",
    "TranscriptionOptions": "outrider_multimodal.speech",
    "speculate": "outrider_lab.speculation",
    "speculate_async": "outrider_lab.speculation",
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
    "Sound",
    "SpeculationParams",
    "StepOutput",
    "StructuredOutput",
    "Transcript",
    "TranscriptionOptions",
    "__version__",
    "speculate",
    "speculate_async",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'outrider' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
