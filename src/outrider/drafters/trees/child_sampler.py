"""From a draft model's logits to the children of a node."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from outrider.config import SamplingParams
from outrider.core.distribution import Context, log_weights
from outrider.core.logits_processors import changes_logits
from outrider.drafters.api import RequestView
from outrider.drafters.trees.builders import Choices, TreeBuilder, tokens_to
from outrider.drafters.trees.draft_vocabulary import DraftVocabulary
from outrider.errors import GrammarError

_FLOAT32 = np.finfo(np.float32)


def draft_params(request: RequestView) -> SamplingParams:
    """The request's sampling options, as its draft model follows them."""
    temperature = request.speculation.draft_temperature
    return request.params if temperature is None else replace(request.params, temperature=temperature)


def most_likely(row: Tensor, count: int) -> Choices:
    """The ``count`` largest of log-weights [vocab], the first of equals first, without the impossible ones.

    A row with NaN has no choices.
    """
    first = int(row.numpy().argmax())
    if not row[first].isfinite():
        return Choices(())
    best = row.topk(min(count, row.shape[0])).indices.tolist()
    tokens = [first, *(token for token in best if token != first and row[token] > -torch.inf)][:count]
    total = float(torch.logsumexp(row, dim=0))
    return Choices(tokens, [float(row[token]) - total for token in tokens])


class ChildSampler:
    """Picks children so that a request's verifier is likely to find the target's token among them.

    ============================  ==========================================================  ======================
    request                       children of a node                                          scores
    ============================  ==========================================================  ======================
    greedy                        the most likely tokens                                      softmax of the logits
    sampled, shared noise         the best of the race the target will hold: log-weights      softmax of log-weights
                                  plus the position's noise (Gumbel-top-k)                    plus noise
    sampled, other, static tree   drawn as ``DraftSampler.siblings`` says, with ``q_logits``
    sampled, other, dynamic tree  the most likely tokens, as one-hot drafts                   softmax of log-weights
    ============================  ==========================================================  ======================

    In the first two, what is scored is what the target will take the argmax of if it agrees with the draft; the softmax
    is the chance that each token wins if the target's logits differ by noise of scale one.
    """

    def __init__(
        self, request: RequestView, *, ranks: bool, vocab_size: int, vocabulary: DraftVocabulary | None = None
    ) -> None:
        """``vocabulary``: which tokens the logits are of, if not all of the target's."""
        params = draft_params(request)
        self._draws = request.draws()
        self._by_likelihood = params.greedy or (ranks and not self._draws.shares_noise)
        if params.greedy:  # a one-hot row has but one token: rank by the logits themselves
            params = replace(params, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
        self._params = params
        self._vocab_size, self._vocabulary = vocab_size, vocabulary
        self._constraint = request.constraint
        split = request.prompt_length
        self._prompt, self._output = request.tokens[:split], request.tokens[split:]

    def __call__(self, logits: Tensor, path: Sequence[int], count: int, key: int) -> Choices:
        """Up to ``count`` children of the node that ``path`` leads to, whose row of the draft model is [vocab]."""
        context = Context(self._prompt, [*self._output, *path])
        try:
            row = log_weights(
                logits[None], [self._params], [context], vocab_size=self._vocab_size, constraint=self._constraint
            )[0]
        except GrammarError:  # of this request, which ends with it if it gets that far; the others go on
            return Choices(())
        depth = len(path)
        if self._by_likelihood:
            return most_likely(row, count)
        if self._draws.shares_noise:
            return most_likely(self._draws.perturbed(row, depth=depth), count)
        return Choices(self._draws.siblings(row, count, depth=depth, node=key), q_logits=row)

    def level(self, tree: TreeBuilder, logits: Tensor) -> list[Choices]:
        """The choices behind every frontier node of a tree, from their rows: [frontier, vocab]."""
        if self._alike and bool(logits.amax(1).isfinite().all()):
            return self._at_once(tree, logits)
        if self._vocabulary is not None:
            logits = self._vocabulary.full(logits)
        return [
            self(row, tokens_to(tree, node), tree.width(node), tree.key(node))
            for node, row in zip(tree.frontier, logits, strict=True)
        ]

    @cached_property
    def _alike(self) -> bool:
        """Whether nothing but its logits sets one row apart from others of its depth, so that all can go together."""
        p = self._params
        whole = p.top_k == 0 and p.top_p == 1.0 and p.min_p == 0.0 and not changes_logits(p, len(self._output))
        known = self._vocabulary is None or int(self._vocabulary.ids[-1]) < self._vocab_size
        return whole and known and self._constraint is None and (self._by_likelihood or self._draws.shares_noise)

    def _at_once(self, tree: TreeBuilder, logits: Tensor) -> list[Choices]:
        """``__call__`` for all frontier nodes: the same choices from a few calls over all rows."""
        counts = [tree.width(node) for node in tree.frontier]
        same = logits.stride(0) == 0  # one row, shown several times
        x = logits[:1].float().cpu() if same else logits.float().cpu()
        if self._vocabulary is None:
            x = x[:, : self._vocab_size]
        x = (x - x.amax(1, keepdim=True)) / float(np.clip(self._params.temperature, _FLOAT32.tiny, _FLOAT32.max))
        if not self._by_likelihood:
            x = x + self._noise(len(tokens_to(tree, tree.frontier[0])), x.shape[1])
        best = x.topk(min(max(counts), x.shape[1]))
        scores = (best.values - x.logsumexp(1, keepdim=True)).tolist()
        first = x.numpy().argmax(1).tolist()  # of equals; topk takes any
        found = [_in_order(*row) for row in zip(first, best.indices.tolist(), scores, strict=True)]
        if same:
            found *= len(counts)
        ids = None if self._vocabulary is None else self._vocabulary.ids
        return [
            Choices([i if ids is None else int(ids[i]) for i in columns[:count]], values[:count])
            for count, (columns, values) in zip(counts, found, strict=True)
        ]

    def _noise(self, depth: int, columns: int) -> Tensor:
        """The noise of a depth's position for the columns of the logits."""
        if self._vocabulary is None:
            return self._draws.perturbed(torch.zeros(columns), depth=depth)
        return self._draws.perturbed(torch.zeros(self._vocabulary.size), depth=depth)[self._vocabulary.ids.cpu()]


def _in_order(first: int, columns: list[int], scores: list[float]) -> tuple[list[int], list[float]]:
    """The columns of the largest scores, ``first``, which is as large as any, in front; none that is impossible."""
    order = [first, *(column for column in columns if column != first)][: len(columns)]
    possible = sum(score > -math.inf for score in scores)
    return order[:possible], scores[:possible]
