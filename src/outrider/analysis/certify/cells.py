"""Which draft sources can be checked with which verifiers."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.config import BRANCHING_SOURCES
from outrider.core.verify import VERIFIERS


def pairs(
    sources: Sequence[str], verifiers: Sequence[str], *, shares_noise: bool | None = None
) -> list[tuple[str, str]]:
    """(source, verifier): exact verifiers, branching sources only with those that take trees.

    ``shares_noise``: True for verifiers that keep the tokens, False for those that keep the distribution
    only, None for all.
    """
    return [
        (source, name)
        for name in verifiers
        for source in sources
        if VERIFIERS[name].exact
        and (VERIFIERS[name].takes_trees or source not in BRANCHING_SOURCES)
        and (shares_noise is None or VERIFIERS[name].shares_noise == shares_noise)
    ]
