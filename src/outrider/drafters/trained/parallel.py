"""Guesses at several of the next tokens at once: each depth has one row of logits, whatever the path to it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from outrider.core.draft import EMPTY, Draft
from outrider.drafters.api import RequestView
from outrider.drafters.trees.pending_draft import Sapling, grow


def grow_parallel(saplings: Sequence[Sapling], levels: Tensor) -> None:
    """Grow chains and trees from ``levels``: float [depths, len(saplings), vocab]."""
    place = {id(each): i for i, each in enumerate(saplings)}
    level = 0

    def fits(each: Sapling, rows: int) -> bool:
        return level + 1 < len(levels)

    def run(growing: Sequence[Sapling]) -> list[Tensor]:
        nonlocal level
        level += 1
        return [levels[level][place[id(each)]].expand(each.wants, -1) for each in growing]

    grow(saplings, [row[None] for row in levels[0]], fits=fits, run=run)


def drafts_of(saplings: Sequence[Sapling], requests: Sequence[RequestView], source: str) -> list[Draft]:
    """The saplings' drafts in the order of ``requests``; nothing where a request has none."""
    drafts = {each.request.id: each.draft(source) for each in saplings}
    return [drafts.get(request.id, EMPTY) for request in requests]
