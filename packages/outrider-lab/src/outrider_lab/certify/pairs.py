"""Pairs draft sources with the verifiers that they can be checked with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from outrider.config import source_record
from outrider.verify.verifiers.catalog import VERIFIERS

T = TypeVar("T")


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


def in_turn(pairs: Sequence[tuple[str, str]], choices: Sequence[T]) -> Mapping[tuple[str, str], T]:
    """One of ``choices`` for each pair of source and verifier.

    Neighbours in both directions differ, so that every source has each of the choices with about as many verifiers, and
    every verifier with about as many sources.
    """
    sources, verifiers = (
        {name: at for at, name in enumerate(dict.fromkeys(names))} for names in zip(*pairs, strict=True)
    )
    return {pair: choices[(sources[pair[0]] + verifiers[pair[1]]) % len(choices)] for pair in pairs}
