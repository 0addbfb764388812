"""Documents to batches: windows of answer rows with the context before them, ordered by seed and epoch alone.

A batch of B windows, each with its context to the left, so that all answers begin in one column::

    column      0 ....... P | P ........... P+A | ... P+A+S+1
                  context   |  queries          |  tokens and labels that deeper positions need
    document      .. t - 1  |  t = start ..     |

Row t of a document holds its token t, the target's feature there, and the target's distribution of token t + 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider_train.data.documents import Document
from outrider_train.losses import Labels
from outrider_train.target.features import FeatureStore

_POOL = 512  # windows sorted by size together
_ALIKE = 32  # about the largest difference of a batch's windows in answer rows, to limit padding


@dataclass(frozen=True)
class Window:
    """Query rows ``start`` to ``stop`` of a document, and context from row ``context``."""

    document: int
    context: int
    start: int
    stop: int


@dataclass(frozen=True)
class Batch:
    """See the drawing above; ``labels`` are flat over [B, A + S + 1], of the columns from P."""

    tokens: Tensor  # int64 [B, P + A + S + 1]
    features: Tensor  # bfloat16 [B, P + A, width]
    positions: Tensor  # int64 [B, P + A]
    attention_mask: Tensor  # bool [B, P + A]: False for padding
    context: int  # P
    labels: Labels  # int64 and float32 [B * (A + S + 1), k]
    label_mask: Tensor  # bool [B, A + S + 1]: label rows that count
    query_mask: Tensor  # bool [B, A]: query rows that belong to the window
    windows: tuple[Window, ...]

    def token_labels(self, at: Tensor) -> Labels:
        """The documents' own tokens as labels of the label rows ``at``, each with probability 1."""
        wide = self.label_mask.shape[1]
        column = (self.context + at % wide + 1).clamp_max(self.tokens.shape[1] - 1)
        ids = self.tokens[at // wide, column][:, None]
        return Labels(ids, torch.ones(ids.shape, device=ids.device))

    @property
    def queries(self) -> int:
        """A, the number of query columns."""
        return self.query_mask.shape[1]

    @property
    def answer_tokens(self) -> int:
        """Answer tokens that the loss counts."""
        return sum(window.stop - window.start for window in self.windows)

    def at(self, shift: int) -> tuple[Tensor, Tensor]:
        """For each query row t: the index in ``labels`` of row t + ``shift``, and whether that label counts.

        Returns int64 [B * A] and bool [B * A].
        """
        wide = self.label_mask.shape[1]
        device = self.label_mask.device
        columns = torch.arange(self.queries, device=device) + shift
        index = torch.arange(len(self.label_mask), device=device)[:, None] * wide + columns
        return index.flatten(), (self.query_mask & self.label_mask[:, columns]).flatten()


class Batcher:
    """Makes the batches of an epoch from seed and epoch alone, so that a resumed run sees the same batches."""

    def __init__(
        self,
        store: FeatureStore,
        indices: Sequence[int],
        *,
        depth: int,
        batch_tokens: int,
        queries: int = 256,
        context: int = 384,
        vocabulary: Tensor | None = None,
        seed: int = 0,
        skip: Mapping[int, Tensor] | None = None,
    ) -> None:
        """``depth``: S, label rows needed beyond a query. ``vocabulary``: target ids of draft ids (labels are mapped).

        ``skip``: by document, bool [n], label rows that do not count (those that earlier drafts guess right).
        """
        self.store, self.depth, self.batch_tokens, self.seed = store, depth, batch_tokens, seed
        self.skip = skip or {}
        self.windows = [
            window for i in indices for window in _windows(i, store.documents[i], queries=queries, context=context)
        ]
        self._map: Tensor | None = None
        if vocabulary is not None:
            self._map = torch.full((store.target.config.vocab_size,), -1, device=store.device)
            self._map[vocabulary] = torch.arange(len(vocabulary), device=store.device)

    def plan(self, epoch: int) -> list[list[Window]]:
        """The batches of an epoch in random order, each of windows of similar size."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        order = torch.randperm(len(self.windows), generator=generator).tolist()
        batches: list[list[Window]] = []
        for at in range(0, len(order), _POOL):
            near = sorted((self.windows[i] for i in order[at : at + _POOL]), key=_size)
            batches += _cut(near, self.batch_tokens)
        shuffled = torch.randperm(len(batches), generator=generator).tolist()
        return [batches[i] for i in shuffled]

    def epoch(self, epoch: int, skip: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, after the first ``skip``."""
        for windows in self.plan(epoch)[skip:]:
            yield self.assemble(windows)

    def in_order(self) -> Iterator[Batch]:
        """Every window once, for evaluation."""
        for windows in _cut(sorted(self.windows, key=_size), self.batch_tokens):
            yield self.assemble(windows)

    def assemble(self, windows: Sequence[Window]) -> Batch:
        """The tensors of ``windows``, on the target's device; integers and masks are copied there together."""
        found, device = self.store.fetch([w.document for w in windows]), self.store.device
        before = max(w.start - w.context for w in windows)
        asked = max(w.stop - w.start for w in windows)
        wide = asked + self.depth + 1
        count, k = len(windows), self.store.top_k
        tokens = torch.zeros(count, before + wide, dtype=torch.int64)
        features = torch.zeros(count, before + asked, self.store.width, dtype=torch.bfloat16, device=device)
        positions = torch.zeros(count, before + asked, dtype=torch.int64)
        attention_mask = torch.zeros(count, before + asked, dtype=torch.bool)
        ids = torch.zeros(count, wide, k, dtype=torch.int64, device=device)
        probs = torch.zeros(count, wide, k, device=device)
        label_mask = torch.zeros(count, wide, dtype=torch.bool)
        query_mask = torch.zeros(count, asked, dtype=torch.bool)
        for b, (w, f) in enumerate(zip(windows, found, strict=True)):
            document = self.store.documents[w.document]
            n, left = len(document.ids), before - (w.start - w.context)
            row = torch.tensor(document.ids[w.context : w.start + wide])
            tokens[b, left : left + len(row)] = row
            end = left + min(n, w.start + asked) - w.context
            if self.store.width:
                features[b, left:end] = f.rows[w.context : w.start + asked]
            attention_mask[b, left:end] = True
            positions[b, left:] = torch.arange(w.context, w.context + before + asked - left)
            first = w.start - (document.start - 1)  # label rows begin at row start - 1
            part = slice(first, first + wide)
            have = len(f.ids[part])
            ids[b, :have], probs[b, :have] = f.ids[part], f.probs[part]
            label_mask[b, : max(0, min(wide, n - 1 - w.start))] = True  # the last row's next token is unknown
            if w.document in self.skip:
                known = self.skip[w.document][w.start : w.start + wide]
                label_mask[b, : len(known)] &= ~known
            query_mask[b, : w.stop - w.start] = True
        if self._map is not None:
            ids = self._map[ids]
        labels = Labels(ids.flatten(0, 1), probs.flatten(0, 1))
        tokens, positions, attention_mask, label_mask, query_mask = (
            t.to(device) for t in (tokens, positions, attention_mask, label_mask, query_mask)
        )
        return Batch(
            tokens, features, positions, attention_mask, before, labels, label_mask, query_mask, tuple(windows)
        )


def _windows(index: int, document: Document, *, queries: int, context: int) -> Iterator[Window]:
    for start in range(document.start - 1, len(document.ids) - 1, queries):
        yield Window(index, max(0, start - context), start, min(start + queries, len(document.ids) - 1))


def _size(window: Window) -> tuple[int, int, int]:
    """Sort key that puts similar windows side by side; padded answer rows cost more than padded context."""
    return (window.stop - window.start) // _ALIKE, window.start - window.context, window.stop


def _cut(windows: Sequence[Window], tokens: int) -> list[list[Window]]:
    """Split consecutive windows into batches of at most ``tokens`` padded rows (or of one window)."""
    batches: list[list[Window]] = []
    before = asked = 0
    for w in windows:
        b, a = max(before, w.start - w.context), max(asked, w.stop - w.start)
        if batches and (len(batches[-1]) + 1) * (a + b) <= tokens:
            batches[-1].append(w)
            before, asked = b, a
        else:
            batches.append([w])
            before, asked = w.start - w.context, w.stop - w.start
    return batches
