"""Options of engines and requests. All defaults live here.

Every class here is frozen and validates itself on construction, so that bad input is refused before
anything is loaded, allocated or queued.
"""

from outrider.config.engine import CACHES, DTYPES, DTypeName, EngineConfig, ModelOptions
from outrider.config.options import engine_config
from outrider.config.sampling import SamplingParams
from outrider.config.sources import SOURCES, DraftShape, DraftSource, source_record
from outrider.config.speculation import (
    AUTO_LENGTH,
    CHAIN_VERIFIERS,
    FIXED_LENGTH,
    LENIENCE,
    MAX_TREE_NODES,
    POSTERIOR_THRESHOLD,
    VERIFIERS,
    SpeculationParams,
    VerifierName,
)  # fmt: skip

__all__ = [
    "AUTO_LENGTH",
    "CACHES",
    "CHAIN_VERIFIERS",
    "DTYPES",
    "FIXED_LENGTH",
    "LENIENCE",
    "MAX_TREE_NODES",
    "POSTERIOR_THRESHOLD",
    "SOURCES",
    "VERIFIERS",
    "DTypeName",
    "DraftShape",
    "DraftSource",
    "EngineConfig",
    "ModelOptions",
    "SamplingParams",
    "SpeculationParams",
    "VerifierName",
    "engine_config",
    "source_record",
]
