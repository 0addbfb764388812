"""An EAGLE-3 head drafts nearly the same as EAGLE-3.1, also behind its own guesses."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider_torch.heads.eagle import EagleLayer
from outrider_train.kinds.eagle_norms import with_norms
from outrider_train.target.features import FeatureSpec
from tests.training import small


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)


@torch.no_grad()
def test_the_second_step_reads_what_it_is_used_to(tmp_path: Path) -> None:
    _, task = small.trainer(tmp_path, "eagle3")
    setup, module = small.setup(tmp_path), task.module
    assert isinstance(module, EagleLayer)
    torch.manual_seed(0)
    module.norm.weight.copy_(0.5 + 3 * torch.rand_like(module.norm.weight))
    store = setup.store(FeatureSpec(module.config.feature_layers, 8))
    made = with_norms(module, store, setup.target.embedding)
    found, ids = store.fetch([0])[0], store.documents[0].ids
    tokens, at = setup.target.embedding[torch.tensor(ids[1:])], torch.arange(len(ids) - 1)
    rows = []
    for head in (module, made):
        first = head(tokens, head.fuse(found.rows[:-1].float()), at, causal)
        rows.append(head.scorable(head(tokens, first, at + 1, causal)))
    before, after = rows
    assert float(F.cosine_similarity(before, after).median()) > 0.99
