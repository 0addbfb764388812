"""Training of EAGLE's layer, unrolled over its own features: "training-time test" (EAGLE-3, section 3.1).

Step 0 reads the target's features. Step s reads the outputs of step s - 1, at the same rows, with the tokens moved
on by one. A query of step s attends to the target's features up to its own row, then to its own guesses::

    row t, step 2      keys of step 0:  rows .. t-1, t    step 1: row t    step 2: row t

as in drafting: the accepted past, then its ancestors. So attention of step s is a causal block and a diagonal
for each step, and context rows need only keys and values.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.drafters.heads.config import HeadConfig
from outrider_torch.heads.eagle import EagleLayer
from outrider_train.batches import Batch
from outrider_train.target.llama import Llama
from outrider_train.tasks import DraftPosition, HeadTask, noise

FEATURE_LOSS, TOKEN_LOSS = 1.0, 0.1  # of EAGLE-1 (Li et al. 2024, section 4.2)
_NOISE = 0.2  # width of EAGLE-1's uniform noise on features, scaled by 512 / rows there; a constant here


class EagleTask(HeadTask):
    """EAGLE-1 (losses of features and tokens) or EAGLE-3 (of tokens alone)."""

    module: EagleLayer

    def __init__(
        self, module: EagleLayer, config: HeadConfig, target: Llama, *, steps: int, depth: int, decay: float, seed: int
    ) -> None:
        """``steps``: trained. ``depth``: measured. ``decay``: weight of each step, relative to the step before."""
        super().__init__(module, config, target, depth=max(steps, depth), max_shift=max(steps, depth))
        self.steps, self.decay, self.seed = steps, decay, seed

    def draft_positions(self, batch: Batch, step: int | None) -> Iterator[DraftPosition]:
        first, p = self.config.kind == "eagle", batch.context
        embeddings = F.embedding(batch.tokens, self.target.embedding)
        features = batch.features.to(embeddings.dtype)
        if first and step is not None:
            spread = torch.rand(features.shape, generator=noise(self.seed, step)) - 0.5
            features = features + (_NOISE * spread).to(features)
        x = self.module.fuse(features)
        behind = self.module.keys(embeddings[:, 1 : p + 1], x[:, :p], batch.positions[:, :p]) if p else None
        attend = Unrolled(batch, behind, self.config.window)
        x = x[:, p:]
        for s in range(self.depth if step is None else self.steps):
            tokens = embeddings[:, p + 1 + s : p + 1 + s + batch.queries]
            x = self.module(tokens, x, batch.positions[:, p:] + s, attend)
            extra = self._regression(x, batch, s) if first and step is not None else None
            weight = self.decay**s * (TOKEN_LOSS if first else 1.0)
            yield DraftPosition(self.module.scorable(x).flatten(0, 1), 1 + s, weight, extra)

    def _regression(self, x: Tensor, batch: Batch, s: int) -> Tensor:
        """Smooth L1 between a_t of step s and the target's feature at t + 1 + s."""
        truth = batch.features[:, batch.context + 1 + s :]
        rows = truth.shape[1]
        there = batch.attention_mask[:, batch.context + 1 + s :] & batch.query_mask[:, :rows]
        if not bool(there.any()):
            return x.sum() * 0
        return FEATURE_LOSS * self.decay**s * F.smooth_l1_loss(x[:, :rows][there].float(), truth[there].float())


class Unrolled:
    """Attention of one batch over all steps; called once for each, in order."""

    def __init__(self, batch: Batch, behind: tuple[Tensor, Tensor] | None, window: int = 0) -> None:
        """``behind``: keys and values of the context rows, [B, P, kv_heads, head_dim].

        ``window``: rows that a row attends to, itself included; 0: all before it.
        """
        self._behind, self._window = behind, window
        rows = torch.arange(batch.attention_mask.shape[1], device=batch.attention_mask.device)
        self._back = rows[batch.context :, None] - rows  # [A, P + A]: distance in rows from query to key
        hidden = ~((self._back >= 0) & batch.attention_mask[:, None] | (self._back == 0))  # keeps the softmax finite
        bias = torch.zeros(hidden.shape, dtype=batch.features.dtype, device=hidden.device)
        self._bias = bias.masked_fill_(hidden, -torch.inf)[:, None, None]  # [B, 1, 1, A, P + A]
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q: [B, A, heads, head_dim]; k and v: [B, A, kv_heads, head_dim]. Returns the attention of q's shape."""
        group = q.shape[2] // k.shape[2]
        if not self._keys and self._behind is not None:
            k, v = torch.cat([self._behind[0], k], dim=1), torch.cat([self._behind[1], v], dim=1)
        self._keys.append(k.transpose(1, 2))  # [B, kv_heads, rows, head_dim]
        self._values.append(v.transpose(1, 2))
        q = (
            q.unflatten(2, (-1, group)).permute(0, 2, 3, 1, 4) * q.shape[-1] ** -0.5
        )  # [B, kv_heads, group, A, head_dim]
        first = (q.flatten(2, 3) @ self._keys[0].transpose(-1, -2)).unflatten(2, (group, -1))
        scores = [first + self._bias, *((q * key[:, :, None]).sum(-1, keepdim=True) for key in self._keys[1:])]
        if self._window:
            self._hide(scores)
        weights = torch.cat(scores, dim=-1).softmax(-1).to(v.dtype)
        seen = weights[..., : first.shape[-1]]
        out: Tensor = (seen.flatten(2, 3) @ self._values[0]).unflatten(2, (group, -1))
        for i, value in enumerate(self._values[1:], first.shape[-1]):
            out = out + weights[..., i : i + 1] * value[:, :, None]
        return out.permute(0, 3, 1, 2, 4).flatten(2, 3)

    def _hide(self, scores: list[Tensor]) -> None:
        """Mask the keys beyond the window of this step's rows: text first, then early steps."""
        step = len(scores) - 1
        scores[0] = scores[0].masked_fill(self._back + step >= self._window, -torch.inf)
        for i in range(1, step - self._window + 1):
            scores[i] = torch.full_like(scores[i], -torch.inf)


@torch.no_grad()
def start_from_target(module: EagleLayer, target: Llama) -> None:
    """Set the initial weights; ``fc`` passes the highest feature on, and the embedding's half starts small.

    eagle3 starts from the target's last layer: its MLP and, for the half of the input that holds features, its
    attention. EAGLE-1 reads normed features, for which that layer's outputs would have the wrong size: it starts
    by repeating its input.
    """
    d = target.config.hidden_size
    own = module.layer
    if module.config.fuses_layers:
        _copy_layer(module, target)
    else:
        own.self_attn.o_proj.weight.zero_()
        own.mlp.down_proj.weight.zero_()
    module.fusing.weight.normal_(std=0.02)
    module.fusing.weight[:, -d:] += torch.eye(d, device=module.fusing.weight.device)
    if module.fusing.bias is not None:
        module.fusing.bias.zero_()


def _copy_layer(module: EagleLayer, target: Llama) -> None:
    last, own, d = target.model.layers[-1], module.layer, target.config.hidden_size
    for name in ("gate_proj", "up_proj", "down_proj"):
        getattr(own.mlp, name).weight.copy_(getattr(last.mlp, name).weight)
    own.post_attention_layernorm.weight.copy_(last.post_attention_layernorm.weight)  # type: ignore[union-attr, arg-type]
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        theirs, mine = getattr(last.self_attn, name).weight, getattr(own.self_attn, name).weight
        if name == "o_proj":
            mine.copy_(theirs)
        else:
            mine[:, d:].copy_(theirs)
            mine[:, :d].normal_(std=float(theirs.float().std()))
    assert own.hidden_norm is not None
    own.hidden_norm.weight.copy_(last.input_layernorm.weight)  # type: ignore[union-attr, arg-type]
    module.norm.weight.copy_(target.model.norm.weight)
