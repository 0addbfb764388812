"""The fused losses against their definitions and autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from outrider.training.losses import RULES, Labels, judge, linear_loss

N, D, V, K = 5, 6, 11, 4


def rows(seed: int = 0) -> tuple[Tensor, Tensor, Labels, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(N, D, generator=generator, requires_grad=True)
    head = torch.randn(V, D, generator=generator, requires_grad=True)
    top = torch.randn(N, V, generator=generator).mul(2).softmax(-1).topk(K)
    ids = top.indices.clone()
    ids[1, 2] = -1  # not scored
    ids[2, 0] = -1
    ids[3] = -1
    weights = torch.rand(N, generator=generator)
    return hidden, head, Labels(ids, top.values), weights


def dense(labels: Labels) -> Tensor:
    """The target's p over the scored tokens, what is not scored missing."""
    ids, probs = labels.scored()
    return torch.zeros(N, V).scatter_add(1, ids, probs)


def expected(rule: str, logits: Tensor, p: Tensor) -> Tensor:
    q = logits.softmax(-1)
    if rule in ("kl", "ce"):
        return (torch.xlogy(p, p) - p * q.log()).sum(-1)
    if rule == "reverse-kl":
        tail = ((1 - p.sum(-1, keepdim=True)) / (V - K)).clamp_min(1e-9)
        return (q * (q / torch.where(p > 0, p, tail)).log()).sum(-1)
    alpha = torch.minimum(p, q).sum(-1)
    return 1 - alpha if rule == "tv" else -alpha.clamp_min(1e-20).log()


@pytest.mark.parametrize("rule", RULES)
def test_losses_and_gradients_are_the_definitions(rule: str) -> None:
    hidden, head, labels, weights = rows()
    if rule == "alpha":
        weights[3] = 0  # no probability is scored there: its α is 0 whatever q is
    loss, hits = linear_loss(hidden, head, labels, rule, weights)
    (3 * loss).backward()
    got = hidden.grad, head.grad
    hidden.grad = head.grad = None
    logits = hidden @ head.T
    wanted = (expected(rule, logits, dense(labels)) * weights).sum()
    (3 * wanted).backward()
    torch.testing.assert_close(loss, wanted, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(got[0], hidden.grad, atol=1e-5, rtol=1e-3)
    torch.testing.assert_close(got[1], head.grad, atol=1e-5, rtol=1e-3)
    assert hits.tolist() == (logits.argmax(-1) == labels.ids[:, 0]).tolist()


def test_judge_ranks_and_overlaps() -> None:
    hidden, head, labels, _ = rows(3)
    ranks, alphas = judge(hidden, head, labels)
    logits = hidden @ head.T
    for i in range(N):
        order = logits[i].argsort(descending=True).tolist()
        best = int(labels.ids[i, 0])
        assert int(ranks[i]) == (order.index(best) if best >= 0 else V)
    torch.testing.assert_close(alphas, torch.minimum(dense(labels), logits.softmax(-1)).sum(-1))
