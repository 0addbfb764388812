"""A target that counts, and a source that knows it: drafts whose fate is known beforehand."""

from __future__ import annotations

import numpy as np

from outrider.drafters.api import RequestView
from outrider.models.toy import TableModel
from outrider.verify.draft import Draft
from tests.small_engines import Scripted

CYCLE = 9


def counting(max_seq_len: int = 256) -> TableModel:
    """After i most likely comes i + 1, then i + 2; greedy output is 1 2 3 ... 8 0 1 ..."""
    table = np.zeros((CYCLE, CYCLE), np.float32)
    for i in range(CYCLE):
        table[i, (i + 1) % CYCLE], table[i, (i + 2) % CYCLE] = 9.0, 4.0
    return TableModel(table, max_seq_len=max_seq_len)


def oracle() -> Scripted:
    """Drafts what the target says greedily, as far as it may."""

    def script(view: RequestView, budget: int) -> Draft:
        return Draft.chain([(view.tokens[-1] + 1 + i) % CYCLE for i in range(budget)], source="oracle")

    return Scripted(script)
