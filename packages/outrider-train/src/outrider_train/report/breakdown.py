"""A head's acceptance by group: α of the nearest guess by context length, kind of chat and category."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from outrider_train.data.documents import CATEGORY, Document
from outrider_train.metrics import JudgedRows

_LENGTHS = ((0, "<256"), (256, "256 to 1k"), (1024, "1k to 2k"), (2048, "2k and more"))  # least tokens, label
_ENOUGH = 200  # least rows of a bucket for a warning
_LOW = 0.7  # of the overall α: a bucket below this gets a warning
_KINDS = {"context length": "contexts of {} tokens", "chat": "{}", "category": "category {}"}  # as warnings name them


def breakdown(rows: JudgedRows, documents: Sequence[Document]) -> dict[str, Any]:
    """``{"overall", "context length", "chat", "category"}``: rows and α of each bucket that has rows."""
    right = rows.ranks == 0
    starts = torch.tensor([start for start, _ in _LENGTHS])
    place = torch.bucketize(rows.lengths, starts, right=True) - 1
    by_length = {name: _bucket(right[place == i]) for i, (_, name) in enumerate(_LENGTHS) if bool((place == i).any())}
    tags = sorted({tag for document in documents for tag in document.tags})
    tagged = {tag: torch.tensor([tag in document.tags for document in documents])[rows.documents] for tag in tags}
    by_tag = {tag: _bucket(right[own]) for tag, own in tagged.items() if bool(own.any())}
    by_category = {tag.removeprefix(CATEGORY): by_tag.pop(tag) for tag in list(by_tag) if tag.startswith(CATEGORY)}
    return {"overall": _bucket(right), "context length": by_length, "chat": by_tag, "category": by_category}


def warnings(found: dict[str, Any]) -> list[str]:
    """A line for each bucket with enough rows where α is far below the overall one."""
    overall = found["overall"]["alpha"]
    return [
        f"α is {bucket['alpha']:.3f} for {title.format(name)}, "
        f"and {overall:.3f} overall: drafts gain little there; train on more such documents"
        for kind, title in _KINDS.items()
        for name, bucket in found[kind].items()
        if bucket["rows"] >= _ENOUGH and bucket["alpha"] < _LOW * overall
    ]


def table(found: dict[str, Any]) -> list[str]:
    """The breakdown as lines of Markdown."""
    lines = ["| rows | of them | α (greedy) |", "|---|---|---|"]
    buckets = [("all", found["overall"])]
    buckets += [(f"context {name}", bucket) for name, bucket in found["context length"].items()]
    buckets += list(found["chat"].items())
    buckets += [("category " + name.replace("|", "\\|"), bucket) for name, bucket in found["category"].items()]
    return lines + [f"| {name} | {bucket['rows']:,} | {bucket['alpha']:.3f} |" for name, bucket in buckets]


def _bucket(right: Tensor) -> dict[str, Any]:
    return {"rows": len(right), "alpha": round(float(right.double().mean()), 4) if len(right) else 0.0}
