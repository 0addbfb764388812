"""Children chosen for all nodes of a level at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from outrider.drafters.trees.builders import Choices, make_tree_builder, tokens_to
from outrider.drafters.trees.child_sampler import ChildSampler
from outrider.drafters.trees.draft_vocabulary import DraftVocabulary
from tests.arrays import randn
from tests.drafters.views import request


@pytest.mark.parametrize("tree", [(3, 1), "dynamic"])
@pytest.mark.parametrize("params", [{}, {"temperature": 0.7}, {"temperature": 1e-30}])
@pytest.mark.parametrize("verifier", ["matching", "sequoia"])
@pytest.mark.parametrize("part", [False, True])
def test_rows_together_choose_as_one_by_one(tree: Any, params: dict[str, float], verifier: str, part: bool) -> None:
    """Also of a draft vocabulary, of a single row shown to all nodes, with ties and impossible tokens."""
    view = request([1, 2], speculation={"tree": tree, "verifier": verifier}, **params)  # type: ignore[arg-type]
    vocabulary = DraftVocabulary(np.array([1, 3, 4, 8, 9, 10]), 12) if part else None
    logits = randn(3, 6 if part else 12, seed=1)
    logits[0, 2] = logits[0, 4] = 3.0
    if not part:
        logits[1, 5:] = -np.inf
    for rows in (logits, np.broadcast_to(logits[:1], logits.shape)):
        tree = make_tree_builder(view.speculation, 6, 2)
        tree.extend([Choices([5, 6, 7], [-0.1, -3.0, -4.0], [np.zeros(12, np.float32)] * 3)])
        assert len(tree.frontier) == 3
        sampler = ChildSampler(view, ranks=tree.ranks, vocab_size=11, vocabulary=vocabulary)
        full = vocabulary.full(rows) if vocabulary else rows
        for found, row, node in zip(sampler.level(tree, rows), full, tree.frontier, strict=True):
            wanted = sampler(row, tokens_to(tree, node), tree.width(node), tree.key(node))
            inside = [i for i, token in enumerate(wanted.tokens) if vocabulary is None or token in vocabulary.columns]
            assert list(found.tokens) == [wanted.tokens[i] for i in inside]
            assert list(found.scores) == pytest.approx([wanted.scores[i] for i in inside if wanted.scores], abs=1e-5)
