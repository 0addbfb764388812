"""Tests batch invariance: a row's result must not depend on its pass's other rows. Finds the first layer to fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from outrider.cache import CacheSpec, KVCache
from outrider.models.base import Model
from outrider.models.batch import ForwardBatch, Span
from outrider.verify.arrays import Floats, host
from outrider.verify.tree import ancestor_mask, depths
from outrider_lab.certify.report import Check

ROWS = 24
CUTS = (1, 2, 3, 4, 5, 8, 12)  # rows in a forward pass, compared with all rows in one


@dataclass(frozen=True)
class Mismatch:
    """The first layer that gave other bits for some row in another batch."""

    batch_kind: str
    layer: int  # counted from 1; one more than the number of layers: the LM head
    rows: int  # rows that differ in this layer
    logits_differ_by: float  # the largest difference of logits


@dataclass(frozen=True)
class InvarianceFindings:
    """Results of ``examine``."""

    mismatches: list[Mismatch]
    noise: float  # largest difference of a logit between two batches with the same row
    batches: int


class _Results:
    """Residual streams after each layer, and logits, of rows scored by one or several forward passes."""

    def __init__(self, model: Model) -> None:
        self._model, self._layers = model, model.config.num_layers
        self._parts: list[list[Floats]] = [[] for _ in range(self._layers + 1)]

    def run(self, batch: ForwardBatch, cache: KVCache, rows: slice) -> None:
        """Run ``batch`` and keep the logits of its ``rows``."""
        result = self._model.forward(replace(batch, features=tuple(range(1, self._layers + 1))), cache)
        assert result.features is not None
        streams = np.split(host(result.features)[rows], self._layers, axis=-1)
        for parts, value in zip(self._parts, [*streams, host(result.logits)[rows]], strict=True):
            parts.append(value)

    def arrays(self) -> list[Floats]:
        """The residual stream after each layer, [rows, d], then logits [rows, vocab]."""
        return [np.concatenate(parts) for parts in self._parts]


def examine(model: Model, tokens: Sequence[int]) -> InvarianceFindings:
    """Score the last ``ROWS`` of ``tokens`` in one forward pass, in several, in a tree, and beside other sequences."""
    whole = _cut(model, tokens, ROWS)
    others = {f"{n} rows a forward pass": _cut(model, tokens, n) for n in CUTS}
    others["beside other sequences"] = _cut(model, tokens, ROWS, num_others=3)
    others["nodes of a tree"] = _tree(model, tokens)
    mismatches, noise = [], 0.0
    for batch_kind, results in others.items():
        found, difference = _first_break(whole, results, batch_kind)
        noise = max(noise, difference)
        if found is not None:
            mismatches.append(found)
    return InvarianceFindings(mismatches, noise, len(others))


def check(findings: InvarianceFindings, dtype: str) -> Check:
    """The check: bit identity, or for each kind of batch the first layer without it."""
    if not findings.mismatches:
        return Check(
            "batch invariance",
            "pass",
            f"every layer gives the same bits in {findings.batches} kinds of batch ({dtype})",
            data={"noise": 0.0},
        )
    first = min(findings.mismatches, key=lambda b: b.layer)
    lines = [
        f"{b.batch_kind}: first in layer {b.layer} ({b.rows} of {ROWS} rows); logits differ by up to "
        f"{b.logits_differ_by:.2g}"
        for b in findings.mismatches
    ]
    return Check(
        "batch invariance",
        "note",
        f"in {dtype} rows depend on their batch, first in layer {first.layer}; arithmetic noise is "
        f"{findings.noise:.2g} per logit, so near-ties may turn out otherwise",
        lines,
        {"noise": findings.noise, "mismatches": [vars(b) for b in findings.mismatches]},
    )


def _first_break(a: _Results, b: _Results, batch_kind: str) -> tuple[Mismatch | None, float]:
    """The earliest result that differs, and the largest difference of logits."""
    differing = [int((x != y).any(axis=-1).sum()) for x, y in zip(a.arrays(), b.arrays(), strict=True)]
    difference = float(np.abs(a.arrays()[-1] - b.arrays()[-1]).max())
    first = next((i for i, rows in enumerate(differing) if rows), None)
    return (None if first is None else Mismatch(batch_kind, first + 1, differing[first], difference)), difference


def _cut(model: Model, tokens: Sequence[int], rows: int, num_others: int = 0) -> _Results:
    """Score the last ROWS tokens, ``rows`` a forward pass, beside ``num_others`` sequences of ``rows`` rows each."""
    results = _Results(model)
    cache = model.new_cache(CacheSpec(slots=1 + num_others, max_seq_len=len(tokens) + 1))
    slots = [cache.allocate() for _ in range(1 + num_others)]
    start = len(tokens) - ROWS
    ids = list(tokens)
    others = [np.roll(ids, 7 * (i + 1)).tolist() for i in range(num_others)]
    for slot, own in zip(slots, [ids, *others], strict=True):
        cache.extend(slot, start)
        model.forward(ForwardBatch(own[:start], range(start), (Span(slot, 0, start),), None), cache)
    while start < len(tokens):
        count = min(rows, len(tokens) - start)
        own_rows = slice(num_others * count, (num_others + 1) * count)  # the tested rows come last
        spans: list[Span] = []
        packed: list[int] = []
        for slot, own in zip([*slots[1:], slots[0]], [*others, ids], strict=True):
            cache.extend(slot, count)
            spans.append(Span(slot, start, count))
            packed += own[start : start + count]
        positions = [*range(start, start + count)] * (1 + num_others)
        results.run(ForwardBatch(packed, positions, tuple(spans), None), cache, own_rows)
        start += count
    return results


def _tree(model: Model, tokens: Sequence[int]) -> _Results:
    """Score the last ROWS tokens as every other node of a tree; the nodes between them are wrong siblings."""
    results = _Results(model)
    cache = model.new_cache(CacheSpec(max_seq_len=len(tokens) + ROWS + 1))
    slot, start = cache.allocate(), len(tokens) - ROWS
    ids = np.array(list(tokens))
    cache.extend(slot, start)
    model.forward(ForwardBatch(tokens[:start], range(start), (Span(slot, 0, start),), None), cache)
    # nodes 1, 3, 5, ... continue the text; node 2i is a sibling of node 2i + 1
    parents = [-1 if node < 2 else (node // 2) * 2 - 1 for node in range(2 * ROWS)]
    packed = np.stack([np.roll(ids[start:], 3), ids[start:]], axis=1).ravel()
    cache.extend(slot, 2 * ROWS)
    span = Span(slot, start, 2 * ROWS, ancestor_mask(parents))
    positions = [start + depth for depth in depths(parents)]
    batch = ForwardBatch(packed.tolist(), positions, (span,), None)
    results.run(batch, cache, slice(1, 2 * ROWS, 2))
    return results
