"""Acceptance on held-out documents, teacher-forced: by position, by rank, and as tokens per run of the target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from outrider_train.batches import Batch, Batcher
from outrider_train.losses import Labels, best_guesses, judge, linear_loss
from outrider_train.tasks import DraftPosition, Task

RANKS = 10


@dataclass(frozen=True)
class Evaluation:
    """A draft's acceptance on held-out rows.

    ``alpha``: at each draft position, the share of rows whose best guess is the target's most likely token, given the
    document's tokens. ``overlap``: at each position, the mean of sum min(p, q), α under sampling at temperature 1.
    ``by_rank``: [position][rank] as ``HeadConfig.acceptance``. ``tau``: tokens per run of the target of a greedy chain
    of all positions, the target's own token included.
    """

    loss: float
    alpha: tuple[float, ...]
    overlap: tuple[float, ...]
    by_rank: tuple[tuple[float, ...], ...]
    tau: float
    rows: int

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain values, for JSON and model cards."""
        return {
            "loss": round(self.loss, 5),
            "alpha_by_position": [round(a, 4) for a in self.alpha],
            "alpha_sampled_by_position": [round(a, 4) for a in self.overlap],
            "mean_acceptance_length": round(self.tau, 3),
            "held_out_rows": self.rows,
        }


@dataclass(frozen=True)
class JudgedRows:
    """Held-out rows of one draft position, from ``evaluate``: tensors [n], except for ``scores``."""

    documents: Tensor  # int64: index of the document
    lengths: Tensor  # int64: tokens before the guessed one
    ranks: Tensor  # int64: of the target's most likely token among the guesses
    reached: Tensor  # bool: whether all earlier guesses of the chain were right
    scores: Tensor  # float32 [n, RANKS]: log-probabilities of the best guesses


def joined(parts: Sequence[JudgedRows]) -> JudgedRows:
    """The rows of all parts."""
    return JudgedRows(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(JudgedRows)))


Observer = Callable[[int, JudgedRows], None]
"""Takes a draft position and its rows; called for each batch."""


def select(position: DraftPosition, batch: Batch) -> tuple[Tensor, Tensor]:
    """The rows of ``position`` that count, and their indices in ``batch.labels``: int64 [n] each."""
    index, counts = batch.at(position.shift)
    if position.own is not None:
        counts = counts & position.own
    rows = counts.nonzero()[:, 0]
    return rows, index[rows]


def labels_of(task: Task, batch: Batch, at: Tensor) -> Labels:
    """The labels of ``task`` at label rows ``at``: the documents' tokens under the rule "ce", else the target's p."""
    return batch.token_labels(at) if task.rule == "ce" else batch.labels[at]


def batch_loss(task: Task, batch: Batch, step: int | None) -> tuple[Tensor, list[tuple[int, int]]]:
    """The training loss of a batch, and for each position (hits, rows)."""
    total = torch.zeros((), device=batch.tokens.device)
    hits: list[tuple[int, int]] = []
    for position in task.draft_positions(batch, step):
        rows, at = select(position, batch)
        loss, right = linear_loss(position.rows[rows], task.head(), labels_of(task, batch, at), task.rule)
        total = total + position.weight * loss
        if position.extra is not None:
            total = total + position.extra
        hits.append((int(right.sum()), len(rows)))
    return total, hits


@torch.no_grad()
def evaluate(task: Task, batcher: Batcher, observe: Observer | None = None) -> Evaluation:
    """Measure ``task``'s draft on every window of ``batcher``; ``observe`` gets the rows of each batch and position."""
    task.module.eval()
    device = batcher.store.device
    count = torch.zeros(task.depth, dtype=torch.float64, device=device)
    overlap, loss = count.clone(), count.clone()
    ranks = torch.zeros(task.depth, RANKS, dtype=torch.float64, device=device)
    weights = count.clone()
    lengths, chains = 0.0, 0
    head = task.head().detach()  # without this, losses compute its gradient even when none is needed
    for batch in batcher.in_order():
        alive = None  # bool [B * A]: whether all earlier guesses were right
        length = torch.zeros(batch.query_mask.numel(), device=device)
        started = torch.zeros_like(length, dtype=torch.bool)
        for i, position in enumerate(task.draft_positions(batch, None)):
            rows, at = select(position, batch)
            labels = labels_of(task, batch, at)
            rank, alpha = judge(position.rows[rows], head, labels)
            weights[i] = position.weight
            if position.weight:  # a loss of weight 0 would take most of the time
                loss[i] += linear_loss(position.rows[rows], head, labels, task.rule)[0].double() * len(rows)
            count[i] += len(rows)
            overlap[i] += alpha.double().sum()
            ranks[i] += torch.bincount(rank[rank < RANKS], minlength=RANKS)
            if observe is not None:
                reached = rows >= 0 if alive is None else alive[rows]
                scores = best_guesses(position.rows[rows], head, min(RANKS, len(head)))
                seen_rows = (rank.cpu(), reached.cpu(), scores.cpu())
                observe(i, JudgedRows(*_places(batch, rows.cpu(), position.shift), *seen_rows))
            right = torch.zeros_like(started)
            right[rows] = rank == 0
            alive = right if alive is None else alive & right
            length += alive
            started[rows] |= i == 0
        lengths, chains = lengths + float(length[started].sum()), chains + int(started.sum())
    task.module.train()
    seen = count.clamp_min(1)
    by_rank = (ranks / seen[:, None]).tolist()
    tau = 1 + lengths / max(1, chains)
    return Evaluation(
        loss=float((weights * loss / seen).sum()),
        alpha=tuple(row[0] for row in by_rank),
        overlap=tuple((overlap / seen).tolist()),
        by_rank=tuple(tuple(row) for row in by_rank),
        tau=tau,
        rows=chains,
    )


def _places(batch: Batch, rows: Tensor, shift: int) -> tuple[Tensor, Tensor]:
    """The documents of query rows [n], and the number of tokens before each guessed token: int64 [n] each."""
    window, column = rows // batch.queries, rows % batch.queries
    documents = torch.tensor([w.document for w in batch.windows])
    starts = torch.tensor([w.start for w in batch.windows])
    return documents[window], starts[window] + column + shift + 1
