"""Losses of a draft's distribution q against the target's p, fused with the LM head.

The LM head is the largest layer of a draft, and q the largest tensor: ``linear_loss`` makes it a chunk of rows at a
time, and keeps the gradients only. p is sparse: the target's most likely tokens with their probabilities; what is
missing to 1 is treated as described for each rule.

| rule | loss of a row | |
|---|---|---|
| kl | sum p log(p / q) | the tail of p is left out; its gradient is that of soft cross-entropy |
| ce | as kl, of p as given: hand it the one-hot of the true token | |
| reverse-kl | sum q log(q / p) | the tail of p is spread evenly (Gu et al. 2024) |
| tv | 1 - sum min(p, q) | total variation, so 1 - α of one draft token (Leviathan et al. 2023, definition 3.2) |
| alpha | -log sum min(p, q) | α itself, as likelihood: its gradient does not fade where α is small |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

RULES: tuple[str, ...] = ("kl", "ce", "reverse-kl", "tv", "alpha")
_CHUNK = 64 << 20  # bytes of float32 logits held at once
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
        """Ids and probabilities with what is not scored at probability 0."""
        known = self.ids >= 0
        return self.ids.clamp_min(0), self.probs * known


def linear_loss(
    hidden: Tensor, head: Tensor, labels: Labels, rule: str, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Mean loss over rows, and whether each row's best guess is the target's: (scalar, bool [n]).

    Args:
        hidden: float [n, d], what the LM head takes.
        head: float [scored, d]. Its gradient is made only if it is wanted.
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
        low = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else hidden.dtype
        table, rows = head.to(low), max(16, _CHUNK // (4 * head.shape[0]))
        needs_hidden, needs_head = hidden.requires_grad, head.requires_grad
        d_hidden = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
        d_head = torch.zeros(head.shape, dtype=torch.float32, device=head.device) if needs_head else None
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        hits = torch.zeros(len(hidden), dtype=torch.bool, device=hidden.device)
        for at in range(0, len(hidden), rows):
            part = slice(at, at + rows)
            h = hidden[part].to(low)
            logits = (h @ table.T).float()
            hits[part] = logits.argmax(-1) == best[part]
            loss, slope = _RULES[rule](logits, ids[part], probs[part])
            total += (loss * weights[part]).sum()
            if needs_hidden or needs_head:
                slope = slope.mul_(weights[part][:, None]).to(low)
                d_hidden[part] = slope @ table
                if d_head is not None:
                    d_head += slope.T @ h
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


# Each rule: logits float32 [n, V] (overwritten), ids and probs [n, k], to the losses [n] and their slopes [n, V].
_Rule = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def _kl(logits: Tensor, ids: Tensor, probs: Tensor) -> tuple[Tensor, Tensor]:
    log_q = logits.gather(1, ids)
    lse = torch.logsumexp(logits, dim=1, keepdim=True)
    mass = probs.sum(1, keepdim=True)
    entropy = torch.xlogy(probs, probs).sum(1)
    loss = entropy + mass[:, 0] * lse[:, 0] - (probs * log_q).sum(1)
    slope = logits.sub_(lse).exp_().mul_(mass)
    return loss, slope.scatter_add_(1, ids, -probs)


def _reverse_kl(logits: Tensor, ids: Tensor, probs: Tensor) -> tuple[Tensor, Tensor]:
    log_q = logits.log_softmax(1)
    q = log_q.exp()
    others = max(1, logits.shape[1] - ids.shape[1])
    tail = ((1 - probs.sum(1, keepdim=True)) / others).clamp_min(1e-9)
    log_p = tail.log().expand_as(log_q).clone()
    known = torch.where(probs > 0, probs.clamp_min(1e-9).log(), log_p.gather(1, ids))
    first = torch.zeros_like(log_p).scatter_reduce_(1, ids, probs, "amax") > 0
    log_p = torch.where(first, log_p.scatter_reduce(1, ids, known, "amax", include_self=False), log_p)
    gap = log_q - log_p
    loss = (q * gap).sum(1)
    return loss, q * (gap - loss[:, None])


def _overlap(logits: Tensor, ids: Tensor, probs: Tensor) -> tuple[Tensor, Tensor]:
    """α = sum min(p, q) of each row, [n], and its slope."""
    q = logits.softmax(1)
    own = q.gather(1, ids)
    under = own * ((own < probs) & (probs > 0))  # where q is the smaller one, α rises with it
    alpha = torch.minimum(own, probs).sum(1)
    return alpha, q.mul_(-under.sum(1, keepdim=True)).scatter_add_(1, ids, under)


def _tv(logits: Tensor, ids: Tensor, probs: Tensor) -> tuple[Tensor, Tensor]:
    alpha, slope = _overlap(logits, ids, probs)
    return 1 - alpha, slope.neg_()


def _alpha(logits: Tensor, ids: Tensor, probs: Tensor) -> tuple[Tensor, Tensor]:
    alpha, slope = _overlap(logits, ids, probs)
    alpha = alpha.clamp_min(_TINY)
    return -alpha.log(), slope.div_(-alpha[:, None])


_RULES: dict[str, _Rule] = {"kl": _kl, "ce": _kl, "reverse-kl": _reverse_kl, "tv": _tv, "alpha": _alpha}


@torch.no_grad()
def judge(hidden: Tensor, head: Tensor, labels: Labels) -> tuple[Tensor, Tensor]:
    """How good a draft is at each row: the rank of the target's best token among its guesses, and α = sum min(p, q).

    Returns int64 [n] (the number of scored tokens where the target's is not among them) and float32 [n].
    """
    low = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else hidden.dtype
    table, rows = head.to(low), max(16, _CHUNK // (4 * head.shape[0]))
    ids, probs = labels.scored()
    ranks, alphas = [], []
    for at in range(0, len(hidden), rows):
        part = slice(at, at + rows)
        logits = (hidden[part].to(low) @ table.T).float()
        own = logits.gather(1, ids[part, :1])
        before = (logits > own).sum(1)
        ranks.append(torch.where(labels.ids[part, 0] >= 0, before, head.shape[0]))
        alphas.append(_overlap(logits, ids[part], probs[part])[0])
    if not ranks:
        return ids.new_zeros(0), probs.new_zeros(0)
    return torch.cat(ranks), torch.cat(alphas)
