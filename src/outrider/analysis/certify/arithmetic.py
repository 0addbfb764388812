"""Does a row of a run depend on its company, on this model and machine? If so, where does it first?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.analysis.certify.report import Check
from outrider.cache import CacheSpec
from outrider.core.tree import ancestor_mask, depths
from outrider.kernels.batch import ForwardBatch, Span
from outrider.models.hooks import with_hooks
from outrider.models.llama import LlamaModel

ROWS = 24
CUTS = (1, 2, 3, 4, 5, 8, 12)  # rows a run, beside all at once


@dataclass(frozen=True)
class Break:
    """The first operation whose result for some row was not the same bits in other company."""

    company: str
    layer: int
    operation: str
    rows: int  # rows that differ there
    logits_differ_by: float  # at the end, the largest difference


@dataclass(frozen=True)
class Findings:
    breaks: list[Break]
    noise: float  # largest difference of a logit between any two ways to run the same row
    companies: int


class _Book:
    """Results by operation, in order, gathered over the runs that make up one way to score the rows."""

    def __init__(self) -> None:
        self.results: dict[tuple[int, str], list[Tensor]] = {}
        self.rows = slice(0, 0)

    def record(self, layer: int, operation: str, result: Tensor) -> None:
        self.results.setdefault((layer, operation), []).append(result[self.rows].float().cpu())


def examine(model: LlamaModel, tokens: Sequence[int]) -> Findings:
    """Score the last ``ROWS`` of ``tokens`` in one run, in small runs, in a tree, and beside another sequence."""
    whole = _cut(model, tokens, ROWS)
    others = {f"{n} rows a run": _cut(model, tokens, n) for n in CUTS}
    others["beside other sequences"] = _cut(model, tokens, ROWS, company=3)
    others["nodes of a tree"] = _tree(model, tokens)
    breaks, noise = [], 0.0
    for company, book in others.items():
        found, difference = _first_break(whole, book, company)
        noise = max(noise, difference)
        if found is not None:
            breaks.append(found)
    return Findings(breaks, noise, len(others))


def check(findings: Findings, dtype: str) -> Check:
    """Bit identity, or the layer and operation where it first breaks in each company."""
    if not findings.breaks:
        return Check(
            "rows do not depend on their company",
            "pass",
            f"every operation of every layer gives the same bits in {findings.companies} kinds of company ({dtype})",
            data={"noise": 0.0},
        )
    first = min(findings.breaks, key=lambda b: b.layer)
    lines = [
        f"{b.company}: first in layer {b.layer}, {b.operation} ({b.rows} of {ROWS} rows); logits differ by up to "
        f"{b.logits_differ_by:.2g}"
        for b in findings.breaks
    ]
    return Check(
        "rows do not depend on their company",
        "note",
        f"in {dtype} they do, first in layer {first.layer}, {first.operation}; arithmetic noise is "
        f"{findings.noise:.2g} per logit, so near-ties may turn out otherwise",
        lines,
        {"noise": findings.noise, "breaks": [vars(b) for b in findings.breaks]},
    )


def _first_break(a: _Book, b: _Book, company: str) -> tuple[Break | None, float]:
    """The earliest result that differs, and the largest difference of logits."""
    found: tuple[int, str, int] | None = None
    difference = 0.0
    for key, parts in a.results.items():
        x, y = torch.cat(parts), torch.cat(b.results[key])
        differing = int((x != y).any(dim=-1).sum())
        if differing and found is None:
            found = (*key, differing)
        difference = float((x - y).abs().max())  # the head comes last
    return (None if found is None else Break(company, *found, difference)), difference


def _cut(model: LlamaModel, tokens: Sequence[int], rows: int, company: int = 0) -> _Book:
    """Score the last ROWS tokens in runs of ``rows``, with ``company`` more sequences of as many rows in each run."""
    book = _Book()
    view = with_hooks(model, book.record)
    cache = model.new_cache(CacheSpec(slots=1 + company, max_seq_len=len(tokens) + 1))
    slots = [cache.allocate() for _ in range(1 + company)]
    start = len(tokens) - ROWS
    ids = torch.tensor(list(tokens))
    others = [ids.roll(7 * (i + 1)) for i in range(company)]
    for slot, own in zip(slots, [ids, *others], strict=True):
        cache.extend(slot, start)
        model.forward(ForwardBatch(own[:start], torch.arange(start), (Span(slot, 0, start),), None), cache)
    while start < len(tokens):
        count = min(rows, len(tokens) - start)
        book.rows = slice(company * count, (company + 1) * count)  # ours are last, behind the others
        spans, packed = [], []
        for slot, own in zip([*slots[1:], slots[0]], [*others, ids], strict=True):
            cache.extend(slot, count)
            spans.append(Span(slot, start, count))
            packed.append(own[start : start + count])
        positions = torch.arange(start, start + count).repeat(1 + company)
        view.forward(ForwardBatch(torch.cat(packed), positions, tuple(spans), None), cache)
        start += count
    return book


def _tree(model: LlamaModel, tokens: Sequence[int]) -> _Book:
    """Score the last ROWS tokens as every other node of a tree, wrong guesses standing between them."""
    book = _Book()
    view = with_hooks(model, book.record)
    cache = model.new_cache(CacheSpec(max_seq_len=len(tokens) + ROWS + 1))
    slot, start = cache.allocate(), len(tokens) - ROWS
    ids = torch.tensor(list(tokens))
    cache.extend(slot, start)
    model.forward(ForwardBatch(ids[:start], torch.arange(start), (Span(slot, 0, start),), None), cache)
    # nodes 1, 3, 5, ... continue the text; node 2i is a sibling of node 2i + 1
    parents = [-1 if node < 2 else (node // 2) * 2 - 1 for node in range(2 * ROWS)]
    packed = torch.stack([ids[start:].roll(3), ids[start:]], dim=1).flatten()
    book.rows = slice(1, 2 * ROWS, 2)
    cache.extend(slot, 2 * ROWS)
    span = Span(slot, start, 2 * ROWS, ancestor_mask(parents))
    view.forward(ForwardBatch(packed, start + torch.tensor(depths(parents)), (span,), None), cache)
    return book
