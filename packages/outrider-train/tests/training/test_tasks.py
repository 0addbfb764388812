"""What is trained is what drafts: batched, unrolled guesses equal those made one after another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.errors import ConfigError
from outrider_torch.heads import load_head
from outrider_torch.heads.dflash import BlockHead
from outrider_torch.heads.eagle import Attend, EagleLayer
from outrider_torch.heads.pass_ import LookaheadEmbeddings
from outrider_train.batches import Batch
from outrider_train.kinds.dflash import DFlashTask
from outrider_train.kinds.eagle import EagleTask
from outrider_train.kinds.pass_ import PassTask
from outrider_train.options import HeadOptions
from outrider_train.recipes import head_task
from outrider_train.target.llama import load_llama
from outrider_train.tasks import HeadTask
from tests.heads.test_heads import causal
from tests.training import small


def prepared(folder: Path, kind: str, **options: Any) -> tuple[HeadTask, Batch, Any]:
    """A task on a target in float32, and a batch of windows with and without context."""
    setup = small.setup(folder)
    setup.target = load_llama(setup.folder, torch.float32)
    task = head_task(setup, HeadOptions(kind, heads=3, depth=3, ttt_steps=3, fresh=True, **options), 0)
    store = setup.store(material_wanted(task))
    batcher, _ = setup.batchers(store, small.train_options(batch_tokens=64), depth=task.max_shift, queries=7)
    batches = [b for b in batcher.in_order() if all(w.context == 0 for w in b.windows)]
    return task, batches[-1], setup


def material_wanted(task: HeadTask) -> Any:
    from outrider_train.target.features import FeatureSpec

    return FeatureSpec(task.config.feature_layers, 4)


def banded(window: int) -> Attend:
    """Causal attention of rows [n, heads, d] that look back at ``window`` rows."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen = torch.ones(len(q), len(q), dtype=torch.bool).tril().triu(1 - window)
        q, k, v = (t.transpose(0, 1) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True).transpose(0, 1)

    return attend


@pytest.mark.parametrize(
    ("kind", "back", "normed"),
    [("eagle", 0, None), ("eagle3", 0, False), ("eagle3", 5, True), ("eagle", 2, None), ("eagle3", 1, None)],
)
def test_unrolled_steps_are_those_of_drafting(kind: str, back: int, normed: bool | None, tmp_path: Path) -> None:
    task, batch, _ = prepared(tmp_path, kind, normed=normed)
    task.config = replace(task.config, window=back)
    attend = banded(back) if back else causal
    module = task.module
    assert isinstance(task, EagleTask)
    assert isinstance(module, EagleLayer)
    batch.__dict__["features"] = batch.features.float()
    with torch.no_grad():
        draft_positions = [g.rows.unflatten(0, batch.query_mask.shape) for g in task.draft_positions(batch, None)]
        b = len(batch.windows) - 1
        window = batch.windows[b]
        for t in range(window.start, window.stop - 3):
            column = batch.context + t - window.start
            first = int(batch.attention_mask[b].long().argmax())  # of the window's rows
            tokens = batch.tokens[b, first + 1 :]
            x = [*module.fuse(batch.features[b, first : column + 1])]
            for s in range(3):
                rows = torch.stack(x)
                embeddings = F.embedding(tokens[: len(rows)], task.target.embedding)
                out: Tensor = module(embeddings, rows, torch.arange(len(rows)), attend)[-1]
                torch.testing.assert_close(
                    draft_positions[s][b, t - window.start], module.scorable(out), atol=1e-4, rtol=1e-3
                )
                x.append(out)


@pytest.mark.parametrize("back", [0, 2])
def test_blocks_are_those_of_drafting(back: int, tmp_path: Path) -> None:
    task, batch, _ = prepared(tmp_path, "dflash", draft_vocab=200, selector_rank=4)
    task.config = replace(task.config, window=back)
    attend = banded(back) if back else causal
    module = task.module
    assert isinstance(task, DFlashTask)
    assert isinstance(module, BlockHead)
    assert module.before is not None
    batch.__dict__["features"] = batch.features.float()
    with torch.no_grad():
        module.masks.normal_()
        assert module.gate is not None
        module.gate.normal_()
        positions = [g.rows.unflatten(0, batch.query_mask.shape) for g in task.draft_positions(batch, None)]
        ids = [] if task.vocabulary is None else task.vocabulary.tolist()
        b = len(batch.windows) - 1
        window = batch.windows[b]
        first = int(batch.attention_mask[b].long().argmax())  # of the window's rows
        for t in range(window.start, window.stop - 3):
            column = batch.context + t - window.start
            x = module.fuse(batch.features[b, first : column + 1])
            e = F.embedding(batch.tokens[b, first + 1 : column + 2], task.target.embedding)
            for s in range(3):
                if s:
                    own = module.block_row(e[len(e) - s], x[len(x) - s], s)
                    e, x = (torch.cat([part, row[None]]) for part, row in zip((e, x), own, strict=True))
                out = module(e, x, torch.arange(len(x)), attend)[-1]
                got = positions[s][b, t - window.start]
                torch.testing.assert_close(got[: len(out)], module.scorable(out), atol=1e-4, rtol=1e-3)
                last = int(batch.tokens[b, column + 1 + s])
                code = module.before[ids.index(last)] if s and last in ids else torch.zeros(4)
                code = code * (1 + module.gate @ F.rms_norm(out, out.shape))
                torch.testing.assert_close(got[len(out) :], code, atol=1e-4, rtol=1e-3)


def test_a_block_drafter_begins_with_an_eagle_head(tmp_path: Path) -> None:
    eagle, _, _ = prepared(tmp_path, "eagle3", draft_vocab=100)
    eagle.save(tmp_path / "eagle3", {})
    setup = small.setup(tmp_path)
    task = head_task(setup, HeadOptions("dflash", heads=3, start_from=str(tmp_path / "eagle3")), 0)
    module = task.module
    assert isinstance(module, BlockHead)
    assert len(module.layers) == 2
    theirs = load_head(tmp_path / "eagle3")[0]
    assert isinstance(theirs, EagleLayer)
    assert task.vocabulary is not None
    assert theirs.draft_ids is not None
    assert torch.equal(task.vocabulary, theirs.draft_ids)
    x, e = torch.randn(2, 5, module.config.hidden_size)
    with torch.no_grad():
        assert torch.equal(module(e, x, torch.arange(5), causal), theirs(e, x, torch.arange(5), causal))
    task.save(tmp_path / "block", {})
    right: dict[str, Any] = {"heads": 3, "start_from": str(tmp_path / "block")}
    for changes, says in (({"layers": 1}, "layers=2"), ({"selector_rank": 8}, "rank=32"), ({"heads": 4}, "heads=3")):
        with pytest.raises(ConfigError, match=says):
            head_task(setup, HeadOptions("dflash", **(right | changes)), 0)


def test_look_ahead_rows_are_those_of_a_plain_run(tmp_path: Path) -> None:
    task, batch, setup = prepared(tmp_path, "pass")
    assert isinstance(task, PassTask)
    assert isinstance(task.module, LookaheadEmbeddings)
    with torch.no_grad():
        compared = 0
        for i, position in enumerate(task.draft_positions(batch, None)):
            assert position.own is not None
            for row in (position.own & batch.query_mask.flatten()).nonzero()[:, 0].tolist():
                window = batch.windows[row // batch.queries]
                ids = setup.documents[window.document].ids[: window.start + row % batch.queries + 1]
                tokens = F.embedding(torch.tensor(ids), task.target.embedding)
                plain = task.target(torch.cat([tokens, task.module()])[None]).hidden[0, len(ids) + i]
                torch.testing.assert_close(position.rows[row], plain, atol=1e-4, rtol=1e-3)
                compared += 1
    assert compared > 5
