"""The fused losses against their definitions and autograd."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from outrider_train import losses
from outrider_train.losses import Labels, judge, linear_loss
from outrider_train.options import RULES

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


def expected(rule: str, logits: Tensor, p: Tensor, weights: Tensor) -> Tensor:
    q = logits.softmax(-1)
    if rule in ("kl", "ce"):
        return (torch.xlogy(p, p) - p * q.log()).sum(-1)
    if rule == "reverse-kl":
        tail = ((1 - p.sum(-1, keepdim=True)) / (V - K)).clamp_min(1e-9)
        return (q * (q / torch.where(p > 0, p, tail)).log()).sum(-1)
    alpha = torch.minimum(p, q).sum(-1)
    if rule == "adaptive":
        share = torch.exp(-3 * (alpha.detach() * weights).sum() / weights.sum())
        return share * expected("kl", logits, p, weights) + (1 - share) * (1 - alpha)
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
    wanted = (expected(rule, logits, dense(labels), weights) * weights).sum()
    (3 * wanted).backward()
    torch.testing.assert_close(loss, wanted, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(got[0], hidden.grad, atol=1e-5, rtol=1e-3)
    torch.testing.assert_close(got[1], head.grad, atol=1e-5, rtol=1e-3)
    assert hits.tolist() == (logits.argmax(-1) == labels.ids[:, 0]).tolist()


def test_adaptive_by_hand() -> None:
    """Two rows of two tokens, in float64: λ is one number for both, and no gradient goes through it."""
    logits = torch.tensor([[0.0, 1.0], [0.5, 0.0]])
    p = [[0.9, 0.1], [0.6, 0.4]]
    q = [[1 / (1 + math.e), math.e / (1 + math.e)], [math.exp(0.5) / (math.exp(0.5) + 1), 1 / (math.exp(0.5) + 1)]]
    alphas = [q[0][0] + 0.1, 0.6 + q[1][1]]  # the smaller of p and q, token by token
    share = math.exp(-3 * sum(alphas) / 2)
    kl = [sum(a * math.log(a / b) for a, b in zip(*row, strict=True)) for row in zip(p, q, strict=True)]
    wanted = sum(share * k + (1 - share) * (1 - a) for k, a in zip(kl, alphas, strict=True)) / 2
    slopes = []
    for row, own, rises in zip(p, q, (0, 1), strict=True):  # α rises with q of the token where q is the smaller
        by_tv = [own[i] * own[rises] - (own[rises] if i == rises else 0.0) for i in (0, 1)]
        slopes.append([(share * (own[i] - row[i]) + (1 - share) * by_tv[i]) / 2 for i in (0, 1)])
    hidden = logits.requires_grad_()
    order = torch.tensor([[0, 1], [0, 1]])
    loss, _ = linear_loss(hidden, torch.eye(2), Labels(order, torch.tensor(p)), "adaptive")
    loss.backward()
    assert float(loss.detach()) == pytest.approx(wanted, rel=1e-6)
    torch.testing.assert_close(hidden.grad, torch.tensor(slopes), atol=1e-6, rtol=1e-5)


def test_adaptive_is_the_same_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """λ is of all rows, also of those that do not fit in a chunk."""
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(40, D, generator=generator, requires_grad=True)
    head = torch.randn(V, D, generator=generator)
    top = torch.randn(40, V, generator=generator).mul(3).softmax(-1).topk(K)
    labels = Labels(top.indices, top.values)
    found = []
    for chunk in (losses._CHUNK, {"cpu": 1}):
        monkeypatch.setattr(losses, "_CHUNK", chunk)
        loss, _ = linear_loss(hidden, head, labels, "adaptive")
        (slope,) = torch.autograd.grad(loss, hidden)
        found.append((loss, slope))
    torch.testing.assert_close(found[0], found[1], atol=1e-6, rtol=1e-5)


def test_judge_ranks_and_overlaps() -> None:
    hidden, head, labels, _ = rows(3)
    ranks, alphas = judge(hidden, head, labels)
    logits = hidden @ head.T
    for i in range(N):
        order = logits[i].argsort(descending=True).tolist()
        best = int(labels.ids[i, 0])
        assert int(ranks[i]) == (order.index(best) if best >= 0 else V)
    torch.testing.assert_close(alphas, torch.minimum(dense(labels), logits.softmax(-1)).sum(-1))
