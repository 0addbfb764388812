"""Messages of the leading process to the others before a forward pass: JSON, and arrays as they lie in memory.

::

    8 bytes: length of the JSON | 8 bytes: length of the numbers | JSON | inputs [T, d] | masks, one after the other
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from outrider.cache.protocol import KVCache
from outrider.models.batch import ForwardBatch, Span
from outrider.verify.arrays import host

FRAME = struct.Struct("<qq")
"""Lengths of a message's two parts."""

Operation = list[Any]
"""Changes of a cache since the pass before, by its number: ["new", cache, model, spec], ["drop", cache],
["copy", cache, targets, sources] and ["zero", cache, rows], in rows of its pool."""


@dataclass(frozen=True)
class GroupMessage:
    """A forward pass, and the changes of caches before it. Slots of spans count ``tables``."""

    operations: list[Operation]
    cache: int
    batch: ForwardBatch
    tables: list[list[int]]


def frame(header: Any, numbers: Sequence[bytes] = ()) -> bytes:
    """A message from a JSON header and arrays."""
    text = json.dumps(header, separators=(",", ":")).encode()
    return b"".join((FRAME.pack(len(text), sum(map(len, numbers))), text, *numbers))


def encode(operations: list[Operation], number: int, batch: ForwardBatch, cache: KVCache) -> bytes:
    """The message of a pass over ``cache``, which has this ``number``; ``batch`` has inputs."""
    assert batch.inputs is not None
    masks = [None if span.mask is None else np.ascontiguousarray(span.mask, np.uint8) for span in batch.spans]
    spans = [
        [
            span.start,
            span.count,
            cache.table(span.slot, span.start + span.count),
            None if mask is None else [*mask.shape],
        ]
        for span, mask in zip(batch.spans, masks, strict=True)
    ]
    header = {
        "operations": operations,
        "cache": number,
        "positions": list(batch.positions),
        "spans": spans,
        "logit_rows": None if batch.logit_rows is None else list(batch.logit_rows),
        "layers": batch.layers,
    }
    inputs = np.ascontiguousarray(host(batch.inputs)).tobytes()
    return frame(header, [inputs, *(mask.tobytes() for mask in masks if mask is not None)])


def decode(header: dict[str, Any], numbers: bytes) -> GroupMessage:
    """The reverse of ``encode``; ``header``: the JSON part."""
    rows = len(header["positions"])
    at = len(numbers) - sum(shape[0] * shape[1] for *_, shape in header["spans"] if shape is not None)
    inputs = np.frombuffer(numbers, np.float32, at // 4).reshape(rows, -1)
    spans, tables = [], []
    for slot, (start, count, table, shape) in enumerate(header["spans"]):
        mask = None
        if shape is not None:
            size = shape[0] * shape[1]
            mask = np.frombuffer(numbers, np.uint8, size, at).reshape(shape).astype(np.bool_)
            at += size
        spans.append(Span(slot, start, count, mask))
        tables.append(table)
    batch = ForwardBatch(
        [0] * rows, header["positions"], tuple(spans), header["logit_rows"], header["layers"], inputs=inputs
    )
    return GroupMessage(header["operations"], header["cache"], batch, tables)
