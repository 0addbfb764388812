"""Verification: which draft tokens are kept, and which token follows them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from outrider.core.verify.base import Draws, Verifier
from outrider.core.verify.matching import Matching
from outrider.core.verify.rejection import Rejection

VERIFIERS: Mapping[str, Verifier] = MappingProxyType({v.name: v for v in (Matching(), Rejection())})
"""By the name used in ``SpeculationParams.verifier``."""

__all__ = ["VERIFIERS", "Draws", "Matching", "Rejection", "Verifier"]
