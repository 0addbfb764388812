"""What a request brings to a forward pass: tokens, positions, masks and rows of logits in packed order."""

from __future__ import annotations

import numpy as np

from outrider.engine.runner import ScheduledRequest
from outrider.verify.draft import Draft
from tests.small_engines import request


def scheduled(draft: Draft) -> ScheduledRequest:
    """Three tokens of which two are in the cache, and a draft behind the third."""
    asked = request([5, 6, 7])
    asked.slot, asked.num_computed_tokens = 0, 2
    return ScheduledRequest(asked, 1, draft)


def test_a_chain_is_packed_as_it_is() -> None:
    packed = scheduled(Draft.chain((8, 9), source="a")).sequence_input()
    assert (packed.start, packed.tokens, list(packed.positions)) == (2, [7, 8, 9], [2, 3, 4])
    assert (list(packed.logit_rows), packed.mask) == ([0, 1, 2], None)


def test_a_tree_is_packed_by_its_longest_path_and_nodes_have_the_positions_of_their_depth() -> None:
    """::

    7 ── 1        nodes 0 to 3: 1, 2 behind 7; 3 behind 2; 4 behind 3
      └─ 2 ── 3 ── 4
    """
    packed = scheduled(Draft((1, 2, 3, 4), (-1, -1, 1, 2), None, "a")).sequence_input()
    assert packed.tokens == [7, 2, 3, 4, 1]
    assert packed.positions == [2, 3, 4, 5, 3]
    assert packed.logit_rows == [0, 4, 1, 2, 3]  # after the last token, then after each node in the draft's order
    assert packed.mask is not None
    seen = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1]], np.bool_)
    assert np.array_equal(packed.mask, seen)
