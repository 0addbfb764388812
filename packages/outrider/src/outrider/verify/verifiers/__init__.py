"""Verification: which draft tokens are kept, and which token follows them."""

from outrider.config import SpeculationParams
from outrider.verify.verifiers.base import Verifier
from outrider.verify.verifiers.matching import Matching

__all__ = ["make_verifier"]


def make_verifier(speculation: SpeculationParams) -> Verifier:
    """The verifier a request asks for, with its parameters; others than the default are imported when asked for."""
    if speculation.verifier == "matching":
        return Matching()
    from outrider.verify.verifiers.catalog import MAKERS

    return MAKERS[speculation.verifier](speculation)
