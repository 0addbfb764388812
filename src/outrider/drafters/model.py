"""A smaller model of the same vocabulary as draft source (Leviathan et al. 2023; docs/algorithms/draft-model.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from outrider.cache.protocol import KVCache
from outrider.config import SamplingParams
from outrider.core.distribution import Context, TargetRows
from outrider.core.draft import EMPTY, Draft
from outrider.drafters.base import Outcome, RequestView
from outrider.models.base import ForwardBatch, Model, Span

CATCH_UP_CHUNK = 512  # tokens a run takes at most while the draft model reads a prompt


@dataclass
class _Sequence:
    """The draft model's own cache of one request, and the tokens it holds."""

    slot: int
    cached: list[int] = field(default_factory=list)


@dataclass
class _Chain:
    """A draft in the making."""

    request: RequestView
    sequence: _Sequence
    budget: int
    params: SamplingParams
    logits: Tensor  # [1, vocab], after the last token fed
    tokens: list[int] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)  # q, where the verifier needs it

    def draw(self, vocab_size: int) -> None:
        """Add one token to the chain."""
        depth = len(self.tokens)
        draws = self.request.draws()
        split = self.request.prompt_length
        output = [*self.request.tokens[split:], *self.tokens]
        row = TargetRows(
            self.logits, self.params, Context(self.request.tokens[:split], output), EMPTY, vocab_size=vocab_size
        )
        if draws.coupled:
            self.tokens.append(row.draw(0, draws.noise, draws.base + depth))
        else:
            self.rows.append(row.log_weights(0))
            self.tokens.append(draws.draw(self.rows[-1], depth=depth, node=depth))


class ModelDrafter:
    """Runs a draft model K times per step, for all requests at once.

    Its cache catches up instead of being kept in step: before drafting it drops what no longer is a prefix of the
    request and feeds what is missing. First use, refused drafts, full acceptance, preemption and resumption are
    then one case.
    """

    def __init__(self, model: Model, *, vocab_size: int, slots: int, max_seq_len: int) -> None:
        """``vocab_size``: tokens shared with the target; columns beyond it are padding."""
        self._model = model
        self._vocab_size = vocab_size
        self._max_seq_len = min(max_seq_len, model.config.max_seq_len)
        self._cache: KVCache = model.new_cache(slots, self._max_seq_len)
        self._sequences: dict[str, _Sequence] = {}

    def start(self, request: RequestView) -> None:
        self._sequences[request.id] = _Sequence(self._cache.allocate())

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Nothing to do: the cache catches up when it drafts."""

    def finish(self, request_id: str) -> None:
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            self._cache.free(sequence.slot)

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        chains: dict[str, _Chain] = {}
        for request, budget in zip(requests, budgets, strict=True):
            budget = min(budget, self._max_seq_len - len(request.tokens))  # beyond its context it has no say
            if budget > 0:
                chains[request.id] = self._begin(request, budget)
        growing = list(chains.values())
        while growing:
            for chain in growing:
                chain.draw(self._vocab_size)
            growing = [chain for chain in growing if len(chain.tokens) < chain.budget]
            if growing:
                logits = self._run([(chain.sequence, chain.tokens[-1:]) for chain in growing])
                for i, chain in enumerate(growing):
                    chain.logits = logits[i : i + 1]
        return [self._draft(chains[r.id]) if r.id in chains else EMPTY for r in requests]

    def _draft(self, chain: _Chain) -> Draft:
        return Draft.chain(chain.tokens, q=torch.stack(chain.rows) if chain.rows else None, source="model")

    def _begin(self, request: RequestView, budget: int) -> _Chain:
        """Catch up with the request's tokens; the logits after the last of them start the chain."""
        sequence, tokens = self._sequences[request.id], list(request.tokens)
        kept = _common_prefix(sequence.cached, tokens[:-1])  # the last token is always fed, for its logits
        self._cache.truncate_to(sequence.slot, kept)
        del sequence.cached[kept:]
        for start in range(kept, len(tokens), CATCH_UP_CHUNK):
            logits = self._run([(sequence, tokens[start : start + CATCH_UP_CHUNK])])
        params, temperature = request.params, request.speculation.draft_temperature
        if temperature is not None:
            params = replace(params, temperature=temperature)
        return _Chain(request, sequence, budget, params, logits)

    def _run(self, work: Sequence[tuple[_Sequence, Sequence[int]]]) -> Tensor:
        """Feed tokens to each sequence; logits [sequences, vocab] after the last token of each."""
        spans: list[Span] = []
        ids: list[int] = []
        positions: list[int] = []
        for sequence, tokens in work:
            start = len(sequence.cached)
            self._cache.extend(sequence.slot, len(tokens))
            spans.append(Span(sequence.slot, start, len(tokens)))
            ids += tokens
            positions += range(start, start + len(tokens))
            sequence.cached += tokens
        last = torch.tensor([span.count for span in spans]).cumsum(0) - 1
        batch = ForwardBatch(torch.tensor(ids), torch.tensor(positions), tuple(spans), last)
        return self._model.forward(batch, self._cache).logits


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:  # the usual case, compared without a Python loop
        return n
    return next(i for i in range(n) if a[i] != b[i])
