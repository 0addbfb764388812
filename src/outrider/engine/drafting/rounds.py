"""Draft sources behind a fence: whatever they do costs speed, never output."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from outrider.cache.protocol import KVCache
from outrider.config.combination import Group
from outrider.core.draft import EMPTY, Draft
from outrider.core.shapes import nodes_by
from outrider.core.tree import depths
from outrider.drafters.api import Drafter, FeatureReader, Outcome
from outrider.drafters.merge import combine
from outrider.engine.adaptive.controller import Controller
from outrider.engine.adaptive.statistics import Effort
from outrider.engine.drafting.forced_tokens import certain, check_draft
from outrider.engine.drafting.ranking import Ranking
from outrider.engine.request import Request

logger = logging.getLogger(__name__)

PATIENCE = 1.0  # seconds a source may take for one call
PATIENCE_PER_TOKEN = 0.02  # and for each token it sees for the first time: draft models read prompts
OVERRUN = 3.0  # seconds beyond that in all, as a busy machine may stall anybody for a second
STRIKES = 3  # requests that a source may fail before it is switched off for all

Said = defaultdict[str, dict[str, Draft]]  # by request and source


class Drafting:
    """Calls the draft sources of each request, combines what they say, and goes on without those that fail.

    A source that raises, takes too long, or returns what the target cannot score is switched off for the requests at
    hand; the reason is logged once and kept in their statistics. After ``STRIKES`` such requests it is switched off
    for those to come. The other sources of a combination go on.
    """

    def __init__(
        self,
        drafters: Mapping[str, Drafter],
        vocab_size: int,
        controller: Controller,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._drafters = drafters
        self._controller = controller
        self._vocab_size = vocab_size
        self._clock = clock
        self._rankings: dict[str, Ranking] = {}  # of requests that want the best of several
        self._seen: dict[tuple[str, str], int] = {}  # (request, source) started -> tokens it has drafted behind
        self._overrun: defaultdict[tuple[str, str], float] = defaultdict(float)  # seconds (request, source) was late
        self._strikes: Counter[str] = Counter()

    @property
    def sources(self) -> tuple[str, ...]:
        return ("none", *self._drafters)

    @property
    def caches(self) -> list[KVCache]:
        """The caches that draft models keep."""
        return [cache for drafter in self._drafters.values() for cache in getattr(drafter, "caches", ())]

    def start(self, request: Request) -> None:
        combination = request.speculation.combination
        if combination.best:
            self._rankings[request.id] = Ranking(combination.groups)
        for name in combination.names:
            if self._strikes[name] >= STRIKES and name not in request.switched_off:
                self._note(name, request, f"switched off after failing {STRIKES} requests")
            if name not in request.switched_off:
                self._seen[request.id, name] = 0
            self._guarded(name, [request], lambda drafter: drafter.start(request))

    def propose(self, requests: Sequence[Request], budgets: Sequence[int], pending: Sequence[int]) -> list[Draft]:
        """A draft per request, empty where nothing may or can be drafted.

        Sources are asked in rounds, each once a round for all the requests that want it: in the first round the
        first group of every request's combination, then the next group of those still without a draft. What
        adaptive requests get is cut down to what is worth scoring.
        """
        granted, budgets = budgets, self._controller.budgets(requests, budgets)
        drafts: dict[str, Draft] = {}
        spent: defaultdict[str, dict[str, Effort]] = defaultdict(dict)  # by request and source
        queue = [(r, b, self._groups(r)) for r, b in zip(requests, budgets, strict=True) if b > 0]
        while queue:
            turns = [(r, b, group) for r, b, groups in queue if (group := next(groups, None)) is not None]
            said = self._ask(turns, spent)
            for request, budget, group in turns:
                if draft := self._combined(request, budget, group, said, spent[request.id]):
                    drafts[request.id] = draft
            left = {r.id for r, _, _ in turns} - drafts.keys()
            queue = [entry for entry in queue if entry[0].id in left]
        for request in requests:
            if spent[request.id]:
                request.stats.draft_s += sum(effort.seconds for effort in spent[request.id].values())
                self._controller.drafted(request, spent[request.id])
        proposed = [drafts.get(request.id, EMPTY) for request in requests]
        selected = self._controller.select(requests, proposed, pending, budgets)
        return [certain(r, draft, room) for r, draft, room in zip(requests, selected, granted, strict=True)]

    def observe(self, outcome: Outcome, request: Request) -> None:
        """Tell the sources and the controller what became of a draft."""
        self._controller.observe(request, outcome.committed, outcome.draft, outcome.verdict.path)
        if request.id in self._rankings:
            self._rankings[request.id].observe(len(outcome.verdict.path))
        for name in request.speculation.combination.names:
            self._guarded(name, [request], lambda drafter: drafter.observe([outcome]))

    def feature_layers(self, requests: Sequence[Request]) -> tuple[int, ...]:
        """The inner results of the target that sources of these requests read, in ascending order."""
        return tuple(sorted({layer for r in requests for _, layers in self._readers(r) for layer in layers}))

    def read(self, request: Request, start: int, features: Tensor, layers: tuple[int, ...]) -> None:
        """Hand over features [n, len(layers) * d] of committed tokens from ``start`` on, to each source its own."""
        for name, wanted in self._readers(request):
            own = features
            if wanted != layers:
                parts = features.chunk(len(layers), dim=-1)
                own = torch.cat([parts[layers.index(layer)] for layer in wanted], dim=-1)
            self._guarded(name, [request], partial(_read, request=request, start=start, features=own))

    def _readers(self, request: Request) -> list[tuple[str, tuple[int, ...]]]:
        """The request's sources that read features, and which."""
        names = [name for name in request.speculation.combination.names if name not in request.switched_off]
        layers = [(name, getattr(self._drafters.get(name), "feature_layers", ())) for name in names]
        return [(name, wanted) for name, wanted in layers if wanted]

    def switch_off(self, request: Request, error: Exception) -> None:
        """Draft no more for this request; no source is blamed for it."""
        request.switched_off.update(request.speculation.combination.names)
        request.stats.draft_error = f"{type(error).__name__}: {error}"
        logger.warning("drafts switched off for a request: %s", request.stats.draft_error)

    def finish(self, request: Request) -> None:
        """Release what the sources hold for the request, also those that were switched off."""
        self._controller.finish(request.id)
        self._rankings.pop(request.id, None)
        for name in request.speculation.combination.names:
            self._overrun.pop((request.id, name), None)
            if self._seen.pop((request.id, name), None) is not None:  # it was started
                try:
                    self._drafters[name].finish(request.id)
                except Exception:  # a source may fail in any way
                    logger.exception("draft source %r failed to release a request", name)

    def _groups(self, request: Request) -> Iterator[Group]:
        ranking = self._rankings.get(request.id)
        return iter(request.speculation.combination.groups if ranking is None else ranking.order())

    def _combined(self, request: Request, budget: int, group: Group, said: Said, spent: Mapping[str, Effort]) -> Draft:
        """One draft of what a group said; where the verifier takes no trees, what the first to speak said."""
        if request.adaptive and request.verifier.takes_trees:  # what several name is to the credit of the cheapest
            group = tuple(
                sorted(group, key=lambda name: round(spent[name].seconds if name in spent else 0.0, 3))
            )  # milliseconds
        own = [draft for name in group if (draft := said[request.id].get(name))]
        if request.adaptive:
            budget *= len(own)  # the controller finds the best of all of them
        draft = combine(own if request.verifier.takes_trees else own[:1], budget)
        if draft and request.id in self._rankings:
            self._rankings[request.id].asked(group)
        return draft

    def _ask(self, turns: Sequence[tuple[Request, int, Group]], spent: defaultdict[str, dict[str, Effort]]) -> Said:
        """What each source says for each request that wants it; puts the effort of each into ``spent``.

        Cheap sources come first, so that dear ones need not be asked where those are sure.
        """
        asked: dict[str, list[tuple[Request, int]]] = {}
        for request, budget, group in turns:
            for name in group:
                if name not in request.switched_off and not self._controller.rests(request, name):
                    most = nodes_by(name, request.speculation, request.depth_limit)
                    asked.setdefault(name, []).append((request, min(budget, most)))
        said: Said = defaultdict(dict)
        for name in sorted(asked, key=self._controller.dearness):
            wanting = [
                (request, budget)
                for request, budget in asked[name]
                if self._controller.adds(request, name, list(said[request.id].values()))
            ]
            if not wanting:
                continue
            began = time.perf_counter()
            self._propose(name, wanting, said)
            seconds = (time.perf_counter() - began) / len(wanting)
            for request, _ in wanting:
                levels = 1 + max(depths(said[request.id].get(name, EMPTY).parents), default=-1)
                spent[request.id][name] = Effort(seconds, levels)
        return said

    def _propose(self, name: str, wanting: Sequence[tuple[Request, int]], said: Said) -> None:
        requests = [request for request, _ in wanting]
        budgets = [budget for _, budget in wanting]

        def call(drafter: Drafter) -> None:
            proposed = drafter.propose(requests, budgets)
            for request, budget, draft in zip(requests, budgets, proposed, strict=True):
                check_draft(draft, budget, request, self._vocab_size)
                said[request.id][name] = draft

        self._guarded(name, requests, call)
        for request in requests:
            self._seen[request.id, name] = len(request.tokens)

    def _guarded(self, name: str, requests: Sequence[Request], call: Callable[[Drafter], None]) -> None:
        """Call a source; on any failure, switch it off for the requests."""
        drafter = self._drafters.get(name)
        if drafter is None or name in requests[0].switched_off:
            return
        began = self._clock()
        try:
            call(drafter)
            self._check_time(name, requests, self._clock() - began)
        except Exception as error:  # noqa: BLE001  a source may fail in any way, and costs only speed
            self._switch_off(name, requests, error)

    def _check_time(self, name: str, requests: Sequence[Request], spent: float) -> None:
        """Raise TimeoutError if a source has kept the requests waiting for too long."""
        allowed = PATIENCE
        for request in requests:
            allowed += PATIENCE_PER_TOKEN * (len(request.tokens) - self._seen.get((request.id, name), 0))
        if spent > allowed:
            for request in requests:
                self._overrun[request.id, name] += spent - allowed
            if max(self._overrun[request.id, name] for request in requests) > OVERRUN:
                raise TimeoutError(f"it took {spent:.1f} s where {allowed:.1f} s are allowed")

    def _switch_off(self, name: str, requests: Sequence[Request], error: Exception) -> None:
        affected = [request for request in requests if name not in request.switched_off]
        if not affected:
            return
        for request in affected:
            self._note(name, request, f"{type(error).__name__}: {error}")
        self._strikes[name] += 1
        lasting = "for this engine" if self._strikes[name] == STRIKES else f"for {len(affected)} request(s)"
        logger.warning("draft source %r switched off %s: %s: %s", name, lasting, type(error).__name__, error)

    def _note(self, name: str, request: Request, reason: str) -> None:
        request.switched_off.add(name)
        if len(request.speculation.combination.names) > 1:
            reason = f"{name}: {reason}"
        earlier = request.stats.draft_error
        request.stats.draft_error = reason if earlier is None else f"{earlier}; {reason}"


def _read(drafter: Drafter, request: Request, start: int, features: Tensor) -> None:
    assert isinstance(drafter, FeatureReader)
    drafter.read(request, start, features)
