"""How much to draft: the most tokens per second, from measured costs and running acceptance (``spec_length="auto"``).

Each step, for all requests together:

1. before drafting, sources that have lost a request time lately rest, and try again after a while; a source that
   has lost time over all requests waits, but for its first steps, until 0.5% of the time has paid for that;
2. while drafting, cheap sources come first, a dear one is not asked where those are sure, and sources that take time
   for each level ask whether another is likely to pay (``Request.promising``);
3. of what they then propose, the nodes most likely to be kept are scored, as many as pay (``engine.worth``).

All three only choose which rows are scored. Under matching verification no output depends on that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from outrider.core.draft import EMPTY, Draft
from outrider.core.tree import depths, leaves
from outrider.engine.adaptive.acceptance import Acceptance
from outrider.engine.adaptive.cost import CostCurve
from outrider.engine.adaptive.selection import OVERHEAD, Proposal, worthwhile
from outrider.engine.adaptive.statistics import MEMORY, Account, Effort, RequestBooks, SourceBooks
from outrider.engine.request import Request

_TRIAL = 2  # levels that a source may give before it is known what they cost


class Controller:
    """Decides for requests with ``spec_length="auto"``; others get what they ask for."""

    def __init__(self, calibrate: Callable[[], CostCurve]) -> None:
        """``calibrate`` is called when the first such request drafts, or before."""
        self._measure = calibrate
        self._curve: CostCurve | None = None
        self._acceptance = Acceptance()
        self._books: dict[str, RequestBooks] = {}
        self._accounts: defaultdict[str, Account] = defaultdict(Account)
        self._token = 0.0  # seconds that a token costs without drafts, in this step
        self._level: dict[str, float] = {}  # seconds that a source takes for a level of a draft

    def calibrate(self) -> None:
        """Measure T(n), unless that has been done."""
        if self._curve is None:
            self._curve = self._measure()

    def budgets(self, requests: Sequence[Request], granted: Sequence[int]) -> list[int]:
        """Nodes to ask each request's source for; ``granted`` is what the scheduler has room for."""
        if any(request.adaptive and room for request, room in zip(requests, granted, strict=True)):
            self._token = self._alone(requests) / len(requests)
        return [
            self._budget(request, room) if request.adaptive else room
            for request, room in zip(requests, granted, strict=True)
        ]

    def select(
        self, requests: Sequence[Request], drafts: Sequence[Draft], pending: Sequence[int], budgets: Sequence[int]
    ) -> list[Draft]:
        """The nodes worth scoring, at most ``budgets[i]`` a request; ``pending`` rows come with each in any case."""
        chosen = list(drafts)
        proposals: dict[int, Proposal] = {}
        for i, (request, draft) in enumerate(zip(requests, drafts, strict=True)):
            if request.adaptive and draft:
                self._books[request.id].proposed = draft
                chances = self._acceptance.chances(request.id, draft, depths(draft.parents))
                proposals[i] = Proposal(draft.parents, chances, budgets[i])
        if not proposals:
            return chosen
        assert self._curve is not None
        fixed = [n if r.adaptive else n + len(d) for r, d, n in zip(requests, drafts, pending, strict=True)]
        kept = worthwhile(proposals, fixed, [request.cached for request in requests], self._curve)
        for i in proposals:
            chosen[i] = drafts[i].only(kept[i]) if i in kept else EMPTY
        self._account(requests, fixed, {i: chosen[i] for i in kept})
        return chosen

    def rests(self, request: Request, name: str) -> bool:
        """Whether a source of the request is not to be asked in this step."""
        state = self._books.get(request.id)
        return request.adaptive and state is not None and name not in state.awake

    def dearness(self, name: str) -> float:
        """Seconds that a source takes for a level, as far as is known."""
        return self._level.get(name, 0.0)

    def adds(self, request: Request, name: str, said: Sequence[Draft]) -> bool:
        """Whether a source is likely to pay beside what cheaper ones have ``said`` in this step already."""
        seconds = self._level.get(name)
        if not request.adaptive or seconds is None or not any(said):
            return True
        chances: dict[int, float] = {}  # of the next token to be this one
        for draft in said:
            found = self._acceptance.chances(request.id, draft, depths(draft.parents))
            for token, parent, chance in zip(draft.tokens, draft.parents, found, strict=True):
                if parent < 0:
                    chances[token] = max(chance, chances.get(token, 0.0))
        left = 1.0 - min(1.0, sum(chances.values()))
        return left * self._acceptance.ahead(request.id, name, [()]) * self._token > seconds

    def drafted(self, request: Request, efforts: Mapping[str, Effort]) -> None:
        """Learn what each source's proposal cost.

        Its first for a request, when a draft model reads the prompt, is no measure of the next, and only in the
        source's account.
        """
        state = self._books.get(request.id)
        if not request.adaptive or state is None:
            return
        for name, effort in efforts.items():
            source, account, seconds = state.sources[name], self._accounts[name], effort.seconds
            if source.begun and effort.levels:
                each = seconds / effort.levels
                old = self._level.get(name, each)
                self._level[name] = min(old, each) if account.new else MEMORY * old + (1 - MEMORY) * each
            if account.new:  # what it would have taken, had it been warm
                seconds = min(seconds, effort.levels * self._level.get(name, 0.0))
            account.book(seconds, self._token)
            source.spent = seconds if source.begun else 0.0
            source.begun = True

    def ran(self, requests: Sequence[Request], drafts: Sequence[Draft], seconds: float) -> None:
        """Learn what a run cost in which every request was decoding."""
        if self._curve is not None:
            rows, branches = [1 + len(draft) for draft in drafts], [_branches(draft) for draft in drafts]
            self._curve.observe(rows, [request.cached for request in requests], branches, seconds)

    def observe(self, request: Request, committed: Sequence[int], draft: Draft, path: Sequence[int]) -> None:
        """Learn what became of a proposal: which of its nodes were right, scored or not, and what that saved.

        ``path``: the nodes of ``draft`` that were kept.
        """
        state = self._books.get(request.id)
        if state is None:
            return
        if state.proposed:
            deep = depths(state.proposed.parents)
            self._acceptance.observe(request.id, state.proposed, deep, committed)
        kept = state.by_source(draft, path)
        for name, source in state.sources.items():
            account = self._accounts[name]
            account.repay(self._token)
            account.book(source.extra - kept[name] * self._token, self._token)
            source.settle(kept[name], self._token, account)
        state.proposed = EMPTY

    def finish(self, request_id: str) -> None:
        """Forget a request."""
        self._books.pop(request_id, None)
        self._acceptance.forget(request_id)

    def _budget(self, request: Request, room: int) -> int:
        if room == 0:
            return 0
        if request.id not in self._books:
            names = request.speculation.combination.names
            self._books[request.id] = RequestBooks({name: SourceBooks(self._accounts[name].promise) for name in names})
            request.judge = partial(self._promising, request.id)
        state = self._books[request.id]
        state.awake = tuple(name for name, source in state.sources.items() if self._may_try(name, source))
        for source in state.sources.values():
            source.rest = max(0, source.rest - 1)
        return room if state.awake else 0

    def _promising(self, request_id: str, source: str, paths: Sequence[Sequence[float]]) -> bool:
        """Whether a level more saves more time than it takes; its scored rows are judged when they are there."""
        seconds = self._level.get(source)
        if seconds is None:
            return len(paths[0]) < _TRIAL
        return self._acceptance.ahead(request_id, source, paths) * self._token > seconds

    def _may_try(self, name: str, source: SourceBooks) -> bool:
        """Whether it does not rest, and if it has yet to be tried in its request, whether all can afford that."""
        return source.rest == 0 and (source.begun or self._accounts[name].affordable)

    def _alone(self, requests: Sequence[Request]) -> float:
        """Seconds of a step of these requests without drafts."""
        self.calibrate()
        assert self._curve is not None
        return self._curve.seconds([1] * len(requests), [request.cached for request in requests]) + OVERHEAD

    def _account(self, requests: Sequence[Request], fixed: Sequence[int], kept: dict[int, Draft]) -> None:
        """Note what each request's scored nodes add to this run."""
        assert self._curve is not None
        contexts = [request.cached for request in requests]
        plain = self._curve.seconds(fixed, contexts)
        total = sum(len(draft) for draft in kept.values())
        more = [n + len(kept.get(i, EMPTY)) for i, n in enumerate(fixed)]
        extra = self._curve.seconds(more, contexts) - plain
        for i, request in enumerate(requests):
            state = self._books.get(request.id)
            if state is not None and request.adaptive:
                own = kept.get(i, EMPTY)
                for name, nodes in state.by_source(own, range(len(own))).items():
                    added = extra / total + _branches(own) * self._curve.branch(contexts[i]) / len(own)
                    state.sources[name].extra = nodes * added


def _branches(draft: Draft) -> int:
    """Leaves beyond the first."""
    return max(0, leaves(draft.parents) - 1)
