"""All verifiers by name, with the parameters that a request gives them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from outrider.config import LENIENCE, POSTERIOR_THRESHOLD, SpeculationParams
from outrider.verify.verifiers.base import Siblings, Verifier
from outrider.verify.verifiers.block import BlockVerifier
from outrider.verify.verifiers.lossy import Lenient, Typical
from outrider.verify.verifiers.matching import Matching
from outrider.verify.verifiers.recursive import Recursive
from outrider.verify.verifiers.traversal import Traversal


def _lenient(speculation: SpeculationParams) -> Verifier:
    return Lenient(LENIENCE if speculation.lenience is None else speculation.lenience)


def _typical(speculation: SpeculationParams) -> Verifier:
    threshold = POSTERIOR_THRESHOLD if speculation.posterior_threshold is None else speculation.posterior_threshold
    return Typical(threshold, math.sqrt(threshold))


MAKERS: Mapping[str, Callable[[SpeculationParams], Verifier]] = MappingProxyType(
    {
        "matching": lambda _: Matching(),
        "rejection": lambda _: Recursive("rejection", takes_trees=False),
        "block": lambda _: BlockVerifier(),
        "iterative": lambda _: Recursive("iterative", Siblings.INDEPENDENT),
        "specinfer": lambda _: Recursive("specinfer", Siblings.INDEPENDENT, shuffled=True),
        "sequoia": lambda _: Recursive("sequoia"),
        "traversal": lambda _: Traversal("traversal"),
        "univer": lambda _: Traversal("univer", Siblings.GREEDY),
        "lenient": _lenient,
        "typical": _typical,
    }
)


VERIFIERS: Mapping[str, Verifier] = MappingProxyType({name: make(SpeculationParams()) for name, make in MAKERS.items()})
"""Verifiers with default parameters, by their name in ``SpeculationParams.verifier``."""
