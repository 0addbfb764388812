"""Division of a tree into tiles of rows that read the cache in order of positions (see ``attention``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.models.batch import Span

_MOST_KEYS = 1 << 15  # gathered per call: bounds the memory of a wide tree over a long context


TILE = 4
"""Rows of a tile: with fewer, the kernel uses other code."""

KEY_BLOCK = 512
"""Keys that the fused kernel processes at a time."""


def padded(rows: int) -> int:
    """``rows`` keys, rounded up to whole blocks."""
    return -(-rows // KEY_BLOCK) * KEY_BLOCK


@dataclass(frozen=True)
class Tile:
    """Consecutive rows of a chain, and the rows that they attend to."""

    rows: list[int]  # of the span's new ones
    first: int  # position of the first
    path: Sequence[int]  # the rows of their chain, counted from the tree's first


def tree_tiles(span: Span, paths: Sequence[tuple[list[int], Sequence[int]]]) -> Iterator[tuple[int, int, list[Tile]]]:
    """Number of keys, rows of a tile and tiles for the span's ``paths`` (``chains``), grouped by equal sizes."""
    alike: dict[int, list[Tile]] = {}
    base = tree_base(span)
    for fresh, path in paths:
        first, done = base + len(path) - len(fresh), 0
        while done < len(fresh):
            keys = padded(first + done + 1)  # a row needs no more keys than its own position
            rows = fresh[done : done + min(TILE, keys - first - done)]
            alike.setdefault(keys, []).append(Tile(rows, first + done, path))
            done += len(rows)
    for keys, tiles in alike.items():
        most = max(1, _MOST_KEYS // keys)
        for i in range(0, len(tiles), most):
            yield keys, TILE, tiles[i : i + most]


def chains(span: Span) -> Iterator[tuple[list[int], Sequence[int]]]:
    """The tree's paths: for each, the span's rows that it computes, and all of its rows, from the tree's first.

    ::

        tree 0 ── 1 ── 3    ->    (0, 1, 3) of path (0, 1, 3)
             └── 2                (2,)      of path (0, 2)
    """
    assert span.mask is not None
    count, width = span.mask.shape
    before, causal = width - count, span.count - count
    sees = [[j for j, seen in enumerate(row) if seen] for row in span.mask.tolist()]
    inner = {j for i, row in enumerate(sees) for j in row if j != before + i}  # rows that other rows attend to
    taken: set[int] = set()
    for leaf in range(count):
        if before + leaf not in inner:
            path = sees[leaf]
            yield [causal + row - before for row in path if row >= before and row not in taken], path
            taken.update(path)


def tree_base(span: Span) -> int:
    """The cache row where the span's tree begins, which may be before or after its first new row."""
    assert span.mask is not None
    return span.start + span.count - int(span.mask.shape[1])


def key_order(span: Span, tiles: Sequence[Tile], keys: int, device: torch.device) -> Tensor:
    """int64 [tiles, keys]: the cache row of each position of each tile's chain; any row beyond the chain."""
    base = tree_base(span)
    longest = max(len(tile.path) for tile in tiles)
    held = min(longest, keys - base)
    order = torch.arange(keys, device=device).repeat(len(tiles), 1)
    chained = [[base + row for row in (*tile.path, *range(len(tile.path), longest))[:held]] for tile in tiles]
    order[:, base : base + held] = torch.tensor(chained, device=device)
    return order
