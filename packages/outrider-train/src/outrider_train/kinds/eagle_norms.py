"""EAGLE-3 to EAGLE-3.1: the same head, written with the norms of the later version.

EAGLE-3 feeds a_t to its next step, EAGLE-3.1 norm(a_t). With D = diag(weight of the last norm) / size of a_t, norm(a_t)
is D a_t, except for rows of unusual size. So the residual stream is scaled by D: the matrices that write to it (``fc``,
``o_proj``, ``down_proj``) are multiplied by D, and the norms that read it are divided by D's direction. The last
norm keeps one number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider_torch.heads.eagle import EagleLayer
from outrider_train.data.documents import Document
from outrider_train.target.features import Features, FeatureStore

_SAMPLE = 32  # documents from which the sizes of features are estimated
_LEAST = 1e-3  # of the largest weight: smaller weights of a norm are raised to this


@torch.no_grad()
def with_norms(module: EagleLayer, store: FeatureStore, embedding: Tensor) -> EagleLayer:
    """An EAGLE-3 head as one of EAGLE-3.1 that drafts nearly the same, to be trained further.

    ``fc`` takes over the median size of each layer's rows (not the mean, as the first row of a text is often a hundred
    times as large). ``embedding``: the target's, float [vocab, d].
    """
    made = EagleLayer(replace(module.config, fc_norm=True, norm_output=True)).to(module.fusing.weight.device)
    made.load_state_dict(module.state_dict(), strict=False)
    some = range(min(_SAMPLE, len(store.documents)))
    features = store.fetch(some)
    rows = torch.cat([found.rows for found in features]).float()
    assert made.fc_norm is not None
    parts = zip(made.fusing.weight.chunk(len(made.fc_norm), dim=1), rows.chunk(len(made.fc_norm), dim=-1), strict=True)
    for weight, part in parts:
        weight.mul_(float(_sizes(part).median()))
    if not module.layer.norms_residual:
        _feed_on_normed(made, *_states(module, [store.documents[i] for i in some], features, embedding))
        _balance(made)
    return made


def _states(
    module: EagleLayer, documents: Sequence[Document], features: Sequence[Features], embedding: Tensor
) -> tuple[Tensor, Tensor]:
    """Input rows and output rows of the first step: float32 [n, d] each."""
    read, made = [], []
    device = module.fusing.weight.device
    for document, found in zip(documents, features, strict=True):
        x = module.fuse(found.rows[:-1].to(device, torch.float32))
        tokens = embedding[torch.tensor(document.ids[1:], device=embedding.device)].to(device, torch.float32)
        made.append(module(tokens, x, torch.arange(len(x), device=device), _causal))
        read.append(x)
    return torch.cat(read), torch.cat(made)


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of one text over itself; see ``outrider.drafters.heads.eagle.Attend``."""
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)


def _feed_on_normed(module: EagleLayer, read: Tensor, made: Tensor) -> None:
    """Scale the residual stream by D; see the top of this file."""
    weight = module.norm.weight.clone()
    least = _LEAST * float(weight.abs().max())
    weight = torch.where(weight.abs() < least, torch.where(weight < 0, -least, least), weight)
    stretch = float((_sizes(made * weight) / _sizes(made)).median())  # median growth of a row by D's direction
    first = float((_sizes(read * weight) / _sizes(read)).median())
    scale = weight / float(_sizes(made).median())
    module.fusing.weight.mul_(scale[:, None])
    for i, layer in enumerate(module.layers):
        layer.self_attn.o_proj.weight.mul_(scale[:, None])  # type: ignore[union-attr, operator]
        layer.mlp.down_proj.weight.mul_(scale[:, None])  # type: ignore[union-attr, operator]
        layer.post_attention_layernorm.weight.mul_(stretch / weight)  # type: ignore[union-attr, operator]
        between = (first * stretch) ** 0.5 if i == 0 else stretch  # the first layer reads both kinds of rows
        layer.hidden_norm.weight.mul_(between / weight)  # type: ignore[union-attr, operator]
    module.norm.weight.fill_(stretch)


def _balance(module: EagleLayer) -> None:
    """Balance the sizes of consecutive matrices, as an optimiser moves all weights by steps of one size."""
    weights = module.state_dict()
    for i in range(len(module.layers)):
        for first, then in (("self_attn.v_proj", "self_attn.o_proj"), ("mlp.up_proj", "mlp.down_proj")):
            a, b = weights[f"layers.{i}.{first}.weight"], weights[f"layers.{i}.{then}.weight"]
            ratio = float((b.square().mean() / a.square().mean()) ** 0.25)
            if 0 < ratio < torch.inf:
                a.mul_(ratio)
                b.div_(ratio)


def _sizes(rows: Tensor) -> Tensor:
    """Root mean square of each row."""
    return rows.square().mean(-1).sqrt()
