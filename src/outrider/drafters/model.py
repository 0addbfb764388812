"""A smaller model of the same vocabulary as draft source (Leviathan et al. 2023; docs/algorithms/draft-model.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from outrider.cache import CacheSpec, KVCache
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


@dataclass(eq=False)
class _Chain:
    """A draft in the making."""

    request: RequestView
    sequence: _Sequence
    budget: int
    params: SamplingParams
    tokens: list[int] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)  # q, where the verifier needs it
    logits: Tensor = field(init=False)  # [1, vocab], after the last token fed

    def draft(self) -> Draft:
        if not self.tokens:
            return EMPTY
        return Draft.chain(self.tokens, q=torch.stack(self.rows) if self.rows else None, source="model")

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

    def __init__(self, model: Model, *, vocab_size: int, cache: CacheSpec) -> None:
        """``vocab_size``: tokens shared with the target; columns beyond it are padding.

        ``cache`` is the target's: the draft model's has the same places, but only its own context length, and no
        shared prefixes, as it is filled behind the target's back.
        """
        self._model = model
        self._vocab_size = vocab_size
        self._max_seq_len = min(cache.max_seq_len, model.config.max_seq_len)
        self.cache: KVCache = model.new_cache(replace(cache, max_seq_len=self._max_seq_len, prefix_reuse=False))
        self._sequences: dict[str, _Sequence] = {}

    def start(self, request: RequestView) -> None:
        self._sequences[request.id] = _Sequence(self.cache.allocate())

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Nothing to do: the cache catches up when it drafts."""

    def finish(self, request_id: str) -> None:
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            self.cache.free(sequence.slot)

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        chains: dict[str, _Chain] = {}
        for request, budget in zip(requests, budgets, strict=True):
            budget = min(budget, self._max_seq_len - len(request.tokens))  # beyond its context it has no say
            if budget > 0:
                chains[request.id] = self._begin(request, budget)
        growing = self._catch_up(list(chains.values()))
        while growing:
            for chain in growing:
                chain.draw(self._vocab_size)
            growing = [c for c in growing if len(c.tokens) < c.budget and self.cache.can_extend(c.sequence.slot, 1)]
            self._run([(chain, chain.tokens[-1:]) for chain in growing])
        return [chains[r.id].draft() if r.id in chains else EMPTY for r in requests]

    def _begin(self, request: RequestView, budget: int) -> _Chain:
        """Drop what the draft model has cached beyond its common beginning with the request."""
        sequence, params = self._sequences[request.id], request.params
        tokens = list(request.tokens)
        kept = _common_prefix(sequence.cached, tokens[:-1])  # the last token is always fed, for its logits
        self.cache.truncate_to(sequence.slot, kept)
        del sequence.cached[kept:]
        if request.speculation.draft_temperature is not None:
            params = replace(params, temperature=request.speculation.draft_temperature)
        return _Chain(request, sequence, budget, params)

    def _catch_up(self, chains: list[_Chain]) -> list[_Chain]:
        """Feed every request's missing tokens, in shared runs of limited size; the chains that can now grow."""
        caught_up: list[_Chain] = []
        while chains:
            work: list[tuple[_Chain, Sequence[int]]] = []
            room = CATCH_UP_CHUNK
            for chain in chains:
                fed = len(chain.sequence.cached)
                piece = chain.request.tokens[fed : fed + room]
                if piece and self.cache.can_extend(chain.sequence.slot, len(piece)):
                    work.append((chain, piece))
                    room -= len(piece)
            if not work:  # no memory for the others: they do without drafts
                break
            self._run(work)
            done = [c for c, _ in work if len(c.sequence.cached) == len(c.request.tokens)]
            caught_up += done
            chains = [chain for chain in chains if chain not in done]
        return caught_up

    def _run(self, work: Sequence[tuple[_Chain, Sequence[int]]]) -> None:
        """Feed tokens to each chain's sequence, all in one run, and keep the logits after the last of each."""
        if not work:
            return
        spans: list[Span] = []
        ids: list[int] = []
        positions: list[int] = []
        for chain, tokens in work:
            slot, cached = chain.sequence.slot, chain.sequence.cached
            self.cache.extend(slot, len(tokens))
            spans.append(Span(slot, len(cached), len(tokens)))
            positions += range(len(cached), len(cached) + len(tokens))
            ids += tokens
            cached += tokens
        last = torch.tensor([span.count for span in spans]).cumsum(0) - 1
        batch = ForwardBatch(torch.tensor(ids), torch.tensor(positions), tuple(spans), last)
        logits = self._model.forward(batch, self.cache).logits
        for i, (chain, _) in enumerate(work):
            chain.logits = logits[i : i + 1]


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:  # the usual case, compared without a Python loop
        return n
    return next(i for i in range(n) if a[i] != b[i])
