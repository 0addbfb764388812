"""Sequences packed into one forward pass."""

from __future__ import annotations

import numpy as np

from outrider.models.batch import SequenceInput, Span, pack


def test_rows_that_need_logits_are_numbered_across_sequences() -> None:
    mask = np.eye(2, dtype=np.bool_)
    batch = pack(
        [
            SequenceInput(0, 5, [7, 8, 9, 6], [5, 6, 7, 7], (3, 2)),
            SequenceInput(3, 0, [4, 2], range(2), (1,), mask),
            SequenceInput(1, 9, [1], [9], ()),
        ],
        layers=2,
        features=(1, 4),
    )
    assert list(batch.token_ids) == [7, 8, 9, 6, 4, 2, 1]
    assert list(batch.positions) == [5, 6, 7, 7, 0, 1, 9]
    assert batch.logit_rows is not None
    assert list(batch.logit_rows) == [3, 2, 5]
    assert batch.spans == (Span(0, 5, 4), Span(3, 0, 2, mask), Span(1, 9, 1))
    assert (batch.layers, batch.features) == (2, (1, 4))
