"""Pairs draft sources with the verifiers that they can be checked with."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.config import source_record
from outrider.verify.verifiers.catalog import VERIFIERS


def exact_pairs(
    sources: Sequence[str], verifiers: Sequence[str], *, shares_noise: bool | None = None
) -> list[tuple[str, str]]:
    """Pairs (source, verifier) of exact verifiers; branching sources only with verifiers that take trees.

    ``shares_noise``: True for verifiers that keep the tokens, False for verifiers that keep only the distribution, None
    for all.
    """
    return [
        (source, name)
        for name in verifiers
        for source in sources
        if VERIFIERS[name].exact
        and (VERIFIERS[name].takes_trees or not source_record(source).shape.branches)
        and (shares_noise is None or VERIFIERS[name].shares_noise == shares_noise)
    ]
