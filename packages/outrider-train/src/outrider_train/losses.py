"""Losses of a draft's distribution q against the target's p, fused with the LM head.

The LM head is the largest layer of a draft, and q the largest tensor: ``linear_loss`` computes q in chunks of rows
and keeps only gradients. p is sparse: the target's most likely tokens with their probabilities; each rule treats the
missing mass, p's tail, as described below.

| rule | loss of a row | |
|---|---|---|
| kl | sum p log(p / q) | the tail of p is left out; its gradient is that of soft cross-entropy |
| ce | as kl, of p as given: hand it the one-hot of the true token | |
| reverse-kl | sum q log(q / p) | the tail of p is spread evenly (Gu et al. 2024) |
| tv | 1 - sum min(p, q) | total variation, so 1 - α of one draft token (Leviathan et al. 2023, definition 3.2) |
| alpha | -log sum min(p, q) | α itself, as likelihood: its gradient does not fade where α is small |
| adaptive | λ kl + (1 - λ) tv | λ = exp(-3 α), α the mean over all rows and held fixed: kl while guesses are poor, |
| | | tv where they are good (Samarin et al. 2026, LK losses, arXiv 2602.23881) |
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_RATE = 3.0  # decay of kl's share with α in "adaptive": the paper's best
_CHUNK = {"cpu": 32 << 20, "cuda": 512 << 20}  # bytes of float32 logits held at once
_TINY = 1e-20


@dataclass(frozen=True)
class Labels:
    """The target's distribution at some rows: its k most likely tokens, best first.

    ``ids``: int64 [n, k], rows of the scoring LM head, -1 for tokens it does not score. ``probs``: float32 [n, k].
    """

    ids: Tensor
    probs: Tensor

    def __getitem__(self, rows: Any) -> Labels:
        return Labels(self.ids[rows], self.probs[rows])

    def scored(self) -> tuple[Tensor, Tensor]:
        """Ids and probabilities: id 0 and probability 0 where the head does not score the token."""
        known = self.ids >= 0
        return self.ids.clamp_min(0), self.probs * known


def linear_loss(
    hidden: Tensor, head: Tensor, labels: Labels, rule: str, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Mean loss over rows, and whether each row's best guess is the target's best token: (scalar, bool [n]).

    Args:
        hidden: float [n, d], the LM head's input.
        head: float [scored, d]. Its gradient is computed only if ``requires_grad`` is set.
        weights: float [n], of the rows in the mean.
    """
    if weights is None:
        weights = hidden.new_full((len(hidden),), 1 / max(1, len(hidden)), dtype=torch.float32)
    ids, probs = labels.scored()
    out: tuple[Tensor, Tensor] = _LinearLoss.apply(hidden, head, ids, probs, labels.ids[:, 0], weights, rule)  # type: ignore[no-untyped-call]
    return out


class _LinearLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, ids: Tensor, probs: Tensor, best: Tensor, weights: Tensor, rule: str
    ) -> tuple[Tensor, Tensor]:
        table, rows = _table(hidden, head), _rows(head)
        d_hidden = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
        d_head = torch.zeros(head.shape, dtype=torch.float32, device=head.device) if head.requires_grad else None
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        slopes_of = _RULES.get(rule) or _blended(hidden, table, ids, probs, weights)
        hits = torch.zeros(len(hidden), dtype=torch.bool, device=hidden.device)
        for at in range(0, len(hidden), rows):
            part = slice(at, at + rows)
            h = hidden[part].to(table.dtype)
            logits = h @ table.T
            top = logits.max(-1)
            hits[part] = top.indices == best[part]
            loss, slope, scale = slopes_of(logits, top, ids[part], probs[part])
            scale = (scale * weights[part])[:, None]
            total += (loss * weights[part]).sum()
            if hidden.requires_grad:
                d_hidden[part] = (slope @ table) * scale
            if d_head is not None:
                d_head += slope.T @ (h * scale).to(table.dtype)
        ctx.save_for_backward(d_hidden, *([] if d_head is None else [d_head]))
        ctx.dtypes = hidden.dtype, head.dtype
        ctx.mark_non_differentiable(hits)
        return total, hits

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        by = grads[0]
        d_hidden, *d_head = ctx.saved_tensors
        made = (d_head[0] * by).to(ctx.dtypes[1]) if d_head else None
        return (d_hidden * by).to(ctx.dtypes[0]), made, None, None, None, None, None


# Each rule takes logits [n, V], their maxima, ids and probs [n, k]. It returns losses float32 [n], and gradients [n, V]
# in the logits' dtype with a factor [n]. Passes over [n, V] take much of the training time, so they are few.
_Top = Any  # torch.return_types.max
_Rule = Callable[[Tensor, _Top, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


def _kl(logits: Tensor, top: _Top, ids: Tensor, probs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q = logits.softmax(1)
    sure = q.gather(1, top.indices[:, None])[:, 0].float()
    lse = top.values.float() - sure.log()  # saves a pass over q, at the cost of q's rounding error
    mass = probs.sum(1)
    entropy = torch.xlogy(probs, probs).sum(1)
    loss = entropy + mass * lse - (probs * logits.gather(1, ids).float()).sum(1)
    # Assigned, not added (slow in bfloat16): ids without weight are replaced by the row's best and assign its value.
    first, nothing = probs.argmax(1, keepdim=True), probs == 0
    ids = torch.where(nothing, ids.gather(1, first), ids)
    values = q.gather(1, ids).float() - probs / mass.clamp_min(_TINY)[:, None]
    values = torch.where(nothing, values.gather(1, first), values)
    return loss, q.scatter_(1, ids, values.to(q.dtype)), mass


def _reverse_kl(logits: Tensor, top: _Top, ids: Tensor, probs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    log_q = logits.float().log_softmax(1)
    q = log_q.exp()
    others = max(1, logits.shape[1] - ids.shape[1])
    tail = ((1 - probs.sum(1, keepdim=True)) / others).clamp_min(1e-9)
    p = tail.expand_as(q).clone()
    best = torch.zeros_like(p).scatter_reduce_(1, ids, probs, "amax")
    gap = log_q - torch.where(best > 0, best.clamp_min(1e-9), p).log()
    loss = (q * gap).sum(1)
    return loss, (q * (gap - loss[:, None])).to(logits.dtype), torch.ones_like(loss)


def _overlap(logits: Tensor, ids: Tensor, probs: Tensor) -> tuple[Tensor, Tensor]:
    """α = sum min(p, q) of each row, [n], and its gradient."""
    q = logits.float().softmax(1)
    own = q.gather(1, ids)
    under = own * ((own < probs) & (probs > 0))  # α grows with q where q < p
    alpha = torch.minimum(own, probs).sum(1)
    return alpha, q.mul_(-under.sum(1, keepdim=True)).scatter_add_(1, ids, under)


def _tv(logits: Tensor, top: _Top, ids: Tensor, probs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    alpha, slope = _overlap(logits, ids, probs)
    return 1 - alpha, slope.to(logits.dtype), -torch.ones_like(alpha)


def _alpha(logits: Tensor, top: _Top, ids: Tensor, probs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    alpha, slope = _overlap(logits, ids, probs)
    sure = alpha.clamp_min(_TINY)
    return -sure.log(), slope.to(logits.dtype), -1 / sure


def _adaptive(
    logits: Tensor, top: _Top, ids: Tensor, probs: Tensor, *, share: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """``share``: λ, given α of these rows. One pass over q gives both gradients: q and p with different factors."""
    lse = logits.float().logsumexp(1)
    q = (logits.float() - lse[:, None]).exp_()
    own, mass = q.gather(1, ids), probs.sum(1)
    under = own * ((own < probs) & (probs > 0))
    alpha = torch.minimum(own, probs).sum(1)
    part = share(alpha)
    kl = torch.xlogy(probs, probs).sum(1) + mass * lse - (probs * logits.gather(1, ids).float()).sum(1)
    slope = q.mul_((part * mass + (1 - part) * under.sum(1))[:, None])
    slope.scatter_add_(1, ids, -part * probs - (1 - part) * under)
    return part * kl + (1 - part) * (1 - alpha), slope.to(logits.dtype), torch.ones_like(alpha)


def _blended(hidden: Tensor, table: Tensor, ids: Tensor, probs: Tensor, weights: Tensor) -> _Rule:
    """The rule "adaptive", with one λ for all rows; rows of several chunks are read twice."""
    most = _rows(table)

    def share(alpha: Tensor) -> Tensor:
        return torch.exp(-_RATE * (alpha * weights).sum() / weights.sum().clamp_min(_TINY))

    if len(hidden) <= most:
        return functools.partial(_adaptive, share=share)
    parts = [slice(at, at + most) for at in range(0, len(hidden), most)]
    alphas = [_overlap(hidden[p].to(table.dtype) @ table.T, ids[p], probs[p])[0] for p in parts]
    fixed = share(torch.cat(alphas))
    return functools.partial(_adaptive, share=lambda alpha: fixed)


_RULES: dict[str, _Rule] = {"kl": _kl, "ce": _kl, "reverse-kl": _reverse_kl, "tv": _tv, "alpha": _alpha}


def _table(hidden: Tensor, head: Tensor) -> Tensor:
    """The LM head's weight in the dtype of its matrix products."""
    device = hidden.device.type
    low = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    return head.to(low)


def _rows(head: Tensor) -> int:
    """The number of rows of a chunk."""
    return max(16, _CHUNK.get(head.device.type, 32 << 20) // (4 * head.shape[0]))


@torch.no_grad()
def judge(hidden: Tensor, head: Tensor, labels: Labels) -> tuple[Tensor, Tensor]:
    """For each row, the rank of the target's best token among the draft's guesses, and α = sum min(p, q).

    Returns int64 [n] (the number of scored tokens where the target's token is not scored) and float32 [n].
    """
    table, rows = _table(hidden, head), _rows(head)
    ids, probs = labels.scored()
    ranks, alphas = [], []
    for at in range(0, len(hidden), rows):
        part = slice(at, at + rows)
        logits = hidden[part].to(table.dtype) @ table.T
        own = logits.gather(1, ids[part, :1])
        before = (logits > own).sum(1)
        ranks.append(torch.where(labels.ids[part, 0] >= 0, before, head.shape[0]))
        alphas.append(_overlap(logits, ids[part], probs[part])[0])
    if not ranks:
        return ids.new_zeros(0), probs.new_zeros(0)
    return torch.cat(ranks), torch.cat(alphas)


@torch.no_grad()
def best_guesses(hidden: Tensor, head: Tensor, count: int) -> Tensor:
    """The log-probabilities in q of each row's ``count`` likeliest tokens, the best first: float32 [n, count]."""
    table, rows = _table(hidden, head), _rows(head)
    found = [hidden.new_zeros(0, count, dtype=torch.float32)]
    for at in range(0, len(hidden), rows):
        log_q = (hidden[at : at + rows].to(table.dtype) @ table.T).float().log_softmax(-1)
        found.append(log_q.topk(count).values)
    return torch.cat(found)
