"""Features and labels from the native run: those of the target in torch, and no others when documents are cut."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from outrider.native.library import library
from outrider_train.target import reader as readers
from outrider_train.target.features import FeatureSpec, FeatureStore
from tests.training import small

pytestmark = pytest.mark.skipif(library() is None, reason="the native library is not there")


@pytest.mark.parametrize("layers", [(1, 2), (), None])
def test_they_are_the_targets(layers: tuple[int, ...] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = small.setup(tmp_path)
    documents = setup.documents[:4]
    assert len(documents) == 4
    longest = max(len(document.ids) for document in documents)
    reader = readers.target_reader(setup.folder, layers, 4, longest, torch.device("cpu"))
    torch_store = FeatureStore(setup.target, documents, FeatureSpec(layers, 4), None, 0, "")
    for document, expected in zip(documents, torch_store.fetch(range(4)), strict=True):
        whole = reader.read(document)
        monkeypatch.setattr(readers, "_CHUNK", 5)
        with torch.autocast("cpu", dtype=torch.bfloat16):  # as in an evaluation
            parts = reader.read(document)
        monkeypatch.undo()
        assert all(torch.equal(a, b) for a, b in zip(whole, parts, strict=True))
        rows, ids, probs = whole
        assert rows.shape == expected.rows.shape
        assert ids.shape == expected.ids.shape
        torch.testing.assert_close(rows.float(), expected.rows.float(), atol=0.1, rtol=0.1)
        torch.testing.assert_close(probs.float(), expected.probs.float(), atol=0.02, rtol=0.1)
        assert float((ids[:, 0] == expected.ids[:, 0]).float().mean()) > 0.9
