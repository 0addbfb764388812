"""Forward passes in a few fixed shapes: a batch is laid out on a grid whose sides are rounded up to buckets.

A CUDA graph repeats the same kernels on the same memory, so every difference between replays must be a number in a
tensor, never a shape. All inputs of a forward pass are therefore written into one tensor of integers:

    tokens, positions, places   one for each of S sequences x n rows; padding writes to the cache's spare row
    tables                      the cache blocks with the keys of each sequence (``cache.protocol.Pool``)
    bases, tree                 each row attends to all cache rows before its sequence's base, and to those that its row
                                of ``tree`` marks after it: this covers draft trees and chains
    scored, packed              the rows for the LM head, and the grid cells of the batch's rows
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.cache.pool import Pool
from outrider.cache.protocol import KVCache
from outrider.models.batch import ForwardBatch

MIN_KEYS = 512
FEW_CELLS = 512  # cells that are not worth a second forward pass
MAX_ROWS = 128  # of a sequence: longer ones keep a device busy without graphs
MAX_SEQUENCES = 1024
MAX_CELLS = 2048  # sequences x rows
MAX_MASK = 1 << 24  # sequences x rows x keys
MAX_COPIED = 1 << 30  # bytes of keys and values copied together for each layer
MANY = 64  # from this many sequences on, keys are rounded up less, as they dominate the copies


@dataclass(frozen=True)
class Bucket:
    """The shape of a forward pass, and every other input to the choice of its kernels."""

    sequences: int
    rows: int  # of each sequence
    keys: int  # cache rows that each row is compared with
    width: int  # columns of ``tree``
    scored: int  # rows that go to the LM head
    block: int  # cache rows per entry of a table
    layers: int | None = None
    features: tuple[int, ...] = ()

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of ``Grid``'s fields, in order."""
        cells = (self.sequences, self.rows)
        tables = (self.sequences, -(-self.keys // self.block))
        return (
            cells,
            cells,
            cells,
            tables,
            (self.sequences,),
            (*cells, self.width),
            (self.scored,),
            (math.prod(cells),),
        )

    @property
    def size(self) -> int:
        """The length of ``Grid``'s buffer in numbers."""
        return sum(math.prod(shape) for shape in self.shapes)


@dataclass(frozen=True)
class Grid:
    """The inputs of a forward pass, as views of one int64 tensor, so that one copy brings them to a device."""

    tokens: Tensor  # [S, n]
    positions: Tensor  # [S, n]
    places: Tensor  # [S, n]: rows of the pool that take the new keys and values
    tables: Tensor  # [S, ceil(keys / block)]
    bases: Tensor  # [S]
    tree: Tensor  # [S, n, width]: 1 where the row attends to cache row base + column
    scored: Tensor  # [R]: cells, counted row by row
    packed: Tensor  # [S * n]: the cell of each row of the batch; 0 after the last

    @classmethod
    def over(cls, buffer: Tensor, bucket: Bucket) -> Grid:
        """Views of ``buffer``: int64 [bucket.size]."""
        parts = torch.split(buffer, [math.prod(shape) for shape in bucket.shapes])
        named = zip(fields(cls), parts, bucket.shapes, strict=True)
        return cls(**{field.name: part.view(shape) for field, part, shape in named})


def bucket_for(batch: ForwardBatch, cache: KVCache, most_copied: int = MAX_COPIED) -> Bucket | None:
    """The smallest shape that holds the batch; None if padding is too large or copies exceed ``most_copied`` bytes."""
    sequences = _power_of_two(len(batch.spans))
    rows = _power_of_two(max(span.count for span in batch.spans))
    width = _power_of_two(max(rows, *(span.mask.shape[1] for span in batch.spans if span.mask is not None), 1))
    longest = -(-cache.max_seq_len // MIN_KEYS) * MIN_KEYS
    seen = max(MIN_KEYS, *(span.start + span.count for span in batch.spans))
    keys = min(longest, _power_of_two(seen) if sequences < MANY else -(-seen // MIN_KEYS) * MIN_KEYS)
    fits = sequences <= MAX_SEQUENCES and rows <= MAX_ROWS and sequences * rows <= MAX_CELLS
    key_bytes = 2 * cache.pool.k[0][0].numel() * cache.pool.k[0].element_size()
    small = sequences * rows * keys <= MAX_MASK and sequences * keys * key_bytes <= most_copied
    if batch.inputs is not None or not fits or not small:
        return None
    scored = len(batch.token_ids) if batch.logit_rows is None else len(batch.logit_rows)
    return Bucket(
        sequences, rows, keys, width, _power_of_two(max(1, scored)), cache.pool.block, batch.layers, batch.features
    )


def split_at(batch: ForwardBatch) -> int | None:
    """The most rows of the sequences to run apart from longer ones, as a grid is as wide as its longest sequence.

    So a prefill does not widen the grid of decoding sequences. None: one grid for all.
    """
    counts = [span.count for span in batch.spans]
    whole = _cells(counts)
    if whole <= FEW_CELLS:
        return None
    costs = {
        limit: _cells([n for n in counts if n <= limit]) + _cells([n for n in counts if n > limit])
        for limit in (1 << i for i in range((max(counts) - 1).bit_length()))
        if min(counts) <= limit
    }
    best = min(costs, key=costs.__getitem__, default=None)
    return best if best is not None and 2 * costs[best] <= whole else None


def _cells(counts: Sequence[int]) -> int:
    """Cells of the grid of sequences with ``counts`` rows."""
    return _power_of_two(len(counts)) * _power_of_two(max(counts))


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def lay_out(batch: ForwardBatch, bucket: Bucket, cache: KVCache) -> Tensor:
    """int64 [bucket.size] on the CPU: the buffer of ``Grid`` for ``batch``, in the shape of ``bucket``.

    In NumPy, which is faster at the many small operations before each forward pass.
    """
    buffer = torch.zeros(bucket.size, dtype=torch.int64)
    whole = Grid.over(buffer, bucket)
    grid = {field.name: getattr(whole, field.name).numpy() for field in fields(Grid)}
    block, spans = cache.pool.block, batch.spans
    counts, starts = (np.array([getattr(span, name) for span in spans]) for name in ("count", "start"))
    sequence = np.arange(len(spans)).repeat(counts)  # [T]
    within = np.arange(len(sequence)) - (counts.cumsum() - counts)[sequence]
    cells, rows = sequence * bucket.rows + within, starts[sequence] + within
    grid["packed"][: len(cells)] = cells
    grid["tokens"].reshape(-1)[cells] = batch.token_ids
    grid["positions"].reshape(-1)[cells] = batch.positions
    grid["tables"][: len(spans)] = [cache.table(span.slot, bucket.keys) for span in spans]
    grid["places"].fill(cache.pool.spare)
    grid["places"].reshape(-1)[cells] = grid["tables"][sequence, rows // block] * block + rows % block
    scored = cells if batch.logit_rows is None else cells[list(batch.logit_rows)]
    grid["scored"][: len(scored)] = scored
    grid["bases"][: len(spans)] = starts
    grid["tree"][:] = np.tri(bucket.rows, bucket.width)  # padding too: a row without keys would be NaN
    for i, span in enumerate(spans):
        if span.mask is not None:
            count, columns = span.mask.shape
            width = max(span.count, columns)
            grid["bases"][i] = span.start + span.count - width
            tree = grid["tree"][i, : span.count]
            tree[:] = np.tri(span.count, bucket.width, width - span.count)
            tree[span.count - count :, width - columns : width] = span.mask
    return buffer


@dataclass(frozen=True)
class GridAttention:
    """Attention of a forward pass in a fixed shape: made once per pass, used by every layer."""

    pool: Pool
    places: Tensor  # int64 [S * n]
    rows: Tensor  # int64 [S * keys], rows of the pool
    mask: Tensor  # float [S, 1, n * group, keys]

    @classmethod
    def plan(
        cls, grid: Grid, bucket: Bucket, pool: Pool, *, group: int, window: int | None, dtype: torch.dtype
    ) -> GridAttention:
        """``group``: query heads per key head; ``window``: most positions that a row attends to, with its own."""
        within = torch.arange(bucket.block, device=grid.tables.device)
        rows = (grid.tables[:, :, None] * bucket.block + within).flatten(1)[:, : bucket.keys]
        visible = _visible(grid, bucket.keys, window).repeat_interleave(group, dim=1)[:, None]
        mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))
        return cls(pool, grid.places.flatten(), rows.clamp_max(pool.filler).flatten(), mask)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store k and v: [S * n, kv_heads, d] and attend with q: [S * n, heads, d] -> [S * n, heads * d]."""
        keys, values = self.pool.k[layer], self.pool.v[layer]
        keys.index_copy_(0, self.places, k)
        values.index_copy_(0, self.places, v)
        sequences, (cells, heads, d), kv_heads = len(self.mask), q.shape, k.shape[1]
        all_k, all_v = (t.index_select(0, self.rows).view(sequences, -1, kv_heads, d) for t in (keys, values))
        q = q.view(sequences, -1, kv_heads, heads // kv_heads, d).transpose(1, 2).reshape(sequences, kv_heads, -1, d)
        out = F.scaled_dot_product_attention(q, all_k.transpose(1, 2), all_v.transpose(1, 2), attn_mask=self.mask)
        return out.view(sequences, kv_heads, -1, heads // kv_heads, d).transpose(1, 2).reshape(cells, heads * d)


def _visible(grid: Grid, keys: int, window: int | None) -> Tensor:
    """bool [S, n, keys]: the cache rows that each row attends to."""
    bases, positions = grid.bases[:, None, None], grid.positions[..., None]
    columns = torch.arange(keys, device=bases.device)
    tree, before = grid.tree > 0, columns < bases
    if window is not None:  # a marked column is an ancestor: its position is the count of marked columns before it
        tree = tree & (bases + grid.tree.cumsum(-1) - 1 > positions - window)
        before = before & (columns > positions - window)
    at = (columns - bases).expand(-1, grid.tree.shape[1], -1)
    width = grid.tree.shape[2]
    within = (at >= 0) & (at < width) & tree.gather(2, at.clamp(0, width - 1))
    return before | within
