"""What a caller can ask for: the only home of defaults.

Every class here is frozen and validates itself on construction, so that bad input is refused before
anything is loaded, allocated or queued.
"""

from outrider.config.engine import CACHES, DTYPES, EngineConfig, ModelOptions
from outrider.config.options import EngineOptions, engine_config
from outrider.config.sampling import SamplingParams
from outrider.config.sources import SOURCES
from outrider.config.speculation import (
    AUTO_LENGTH,
    BRANCHING_SOURCES,
    CHAIN_VERIFIERS,
    DRAFT_MODELS,
    FIXED_LENGTH,
    GROWING_SOURCES,
    LENIENCE,
    MAX_TREE_NODES,
    POSTERIOR_ALPHA,
    POSTERIOR_THRESHOLD,
    UNSHAPED_SOURCES,
    VERIFIERS,
    SpeculationParams,
    VerifierName,
)  # fmt: skip

__all__ = [
    "AUTO_LENGTH",
    "BRANCHING_SOURCES",
    "CACHES",
    "CHAIN_VERIFIERS",
    "DRAFT_MODELS",
    "DTYPES",
    "FIXED_LENGTH",
    "GROWING_SOURCES",
    "LENIENCE",
    "MAX_TREE_NODES",
    "POSTERIOR_ALPHA",
    "POSTERIOR_THRESHOLD",
    "SOURCES",
    "UNSHAPED_SOURCES",
    "VERIFIERS",
    "EngineConfig",
    "EngineOptions",
    "ModelOptions",
    "SamplingParams",
    "SpeculationParams",
    "VerifierName",
    "engine_config",
]
