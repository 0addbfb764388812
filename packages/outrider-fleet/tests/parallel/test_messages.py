"""What the first process sends arrives as it was."""

from __future__ import annotations

import json

import numpy as np

from outrider.cache import CacheSpec, make_cache
from outrider.models.batch import ForwardBatch, Span
from outrider.verify.tree import ancestor_mask
from outrider_fleet.parallel.messages import FRAME, decode, encode
from tests.arrays import randn


def test_a_pass_with_trees_arrives_as_it_was() -> None:
    kv = make_cache(CacheSpec(slots=3, max_seq_len=64, kind="paged"), layers=1, kv_heads=1, head_dim=2, dtype="float32")
    slots = [kv.allocate() for _ in range(3)]
    for slot in slots:
        kv.extend(slot, 20 + slot)
    masks = [ancestor_mask((-1, 0, 0)), None, ancestor_mask((-1, -1))]
    counts = [4, 1, 2]
    spans = tuple(Span(s, 16 + s, n, m) for s, n, m in zip(slots, counts, masks, strict=True))
    inputs = randn(7, 5)
    batch = ForwardBatch([9] * 7, list(range(7)), spans, (6, 0), layers=1, inputs=inputs)
    operations = [["copy", 2, [5, 6], [8, 9]], ["zero", 2, [1]]]
    data = encode(operations, 2, batch, kv)
    text, numbers = FRAME.unpack(data[: FRAME.size])
    assert len(data) == FRAME.size + text + numbers
    found = decode(json.loads(data[FRAME.size : FRAME.size + text]), data[FRAME.size + text :])
    assert (found.operations, found.cache) == (operations, 2)
    assert found.batch.inputs is not None
    assert np.array_equal(found.batch.inputs, inputs)
    assert (list(found.batch.positions), found.batch.logit_rows, found.batch.layers) == (list(range(7)), [6, 0], 1)
    for span, sent, table in zip(found.batch.spans, spans, found.tables, strict=True):
        assert (span.start, span.count) == (sent.start, sent.count)
        assert table == kv.table(sent.slot, sent.start + sent.count)
        assert (span.mask is None) == (sent.mask is None)
        assert span.mask is None or sent.mask is None or np.array_equal(span.mask, sent.mask)
