"""Draft sources behind a fence: whatever they do costs speed, never output."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from outrider.cache.protocol import KVCache
from outrider.core.draft import EMPTY, Draft
from outrider.drafters.base import Drafter, Outcome
from outrider.engine.controller import Controller
from outrider.engine.request import Request

logger = logging.getLogger(__name__)


class Drafting:
    """Calls each request's draft source and goes on without it if it fails.

    A source that raises, or returns what the target cannot score, is switched off for the requests at hand; the
    reason is logged once a request and kept in its statistics.
    """

    def __init__(self, drafters: Mapping[str, Drafter], vocab_size: int, controller: Controller) -> None:
        self._drafters = drafters
        self._controller = controller
        self._vocab_size = vocab_size

    @property
    def sources(self) -> tuple[str, ...]:
        return ("none", *self._drafters)

    @property
    def caches(self) -> list[KVCache]:
        """The caches that draft models keep."""
        return [cache for drafter in self._drafters.values() for cache in getattr(drafter, "caches", ())]

    def start(self, request: Request) -> None:
        self._guarded([request], lambda drafter: drafter.start(request))

    def propose(self, requests: Sequence[Request], budgets: Sequence[int], pending: Sequence[int]) -> list[Draft]:
        """A draft per request, empty where nothing may or can be drafted; each source is called once for all.

        Those of adaptive requests are cut down to what is worth scoring.
        """
        budgets = self._controller.budgets(requests, budgets)
        drafts: dict[str, Draft] = {}
        asked: dict[str, list[tuple[Request, int]]] = {}
        for request, budget in zip(requests, budgets, strict=True):
            if budget > 0 and request.stats.draft_error is None:
                asked.setdefault(request.speculation.draft, []).append((request, budget))
        for wanting in asked.values():
            began = time.perf_counter()
            self._propose(wanting, drafts)
            spent = (time.perf_counter() - began) / len(wanting)
            for request, _ in wanting:
                request.stats.draft_s += spent
                self._controller.drafted(request, drafts.get(request.id, EMPTY), spent)
        proposed = [drafts.get(request.id, EMPTY) for request in requests]
        return self._controller.select(requests, proposed, pending)

    def observe(self, outcome: Outcome, request: Request) -> None:
        """Tell the source and the controller what became of a draft."""
        self._controller.observe(request, outcome.committed, len(outcome.verdict.path))
        self._guarded([request], lambda drafter: drafter.observe([outcome]))

    def switch_off(self, request: Request, error: Exception) -> None:
        """Draft no more for this request."""
        if request.stats.draft_error is None:
            request.stats.draft_error = f"{type(error).__name__}: {error}"
            logger.warning("draft source %r switched off: %s", request.speculation.draft, error)

    def finish(self, request: Request) -> None:
        """Release what the source holds for the request, also if it was switched off."""
        self._controller.finish(request.id)
        drafter = self._drafters.get(request.speculation.draft)
        if drafter is not None:
            try:
                drafter.finish(request.id)
            except Exception:  # a source may fail in any way
                logger.exception("draft source %r failed to release a request", request.speculation.draft)

    def _propose(self, wanting: Sequence[tuple[Request, int]], drafts: dict[str, Draft]) -> None:
        requests = [request for request, _ in wanting]
        budgets = [budget for _, budget in wanting]

        def call(drafter: Drafter) -> None:
            proposed = drafter.propose(requests, budgets)
            for request, budget, draft in zip(requests, budgets, proposed, strict=True):
                self._check(draft, budget, request)
                drafts[request.id] = draft

        self._guarded(requests, call)

    def _guarded(self, requests: Sequence[Request], call: Callable[[Drafter], None]) -> None:
        """Call the requests' common source; on any failure, switch it off for them."""
        drafter = self._drafters.get(requests[0].speculation.draft)
        if drafter is None or requests[0].stats.draft_error is not None:
            return
        try:
            call(drafter)
        except Exception as error:  # noqa: BLE001  a source may fail in any way, and costs only speed
            for request in requests:
                self.switch_off(request, error)

    def _check(self, draft: Draft, budget: int, request: Request) -> None:
        """Raise ValueError unless the target can score the draft and the request's verifier can judge it."""
        if len(draft) > budget:
            raise ValueError(f"it proposed {len(draft)} tokens where {budget} were allowed")
        for token in draft.tokens:
            if not isinstance(token, int) or not 0 <= token < self._vocab_size:
                raise ValueError(f"it proposed token {token!r}, outside the vocabulary of {self._vocab_size}")
        if draft.q is not None and not (draft.q.dim() == 2 and draft.q.is_floating_point()):
            raise ValueError(f"its q is {draft.q.dtype} {list(draft.q.shape)}, not a float for each node and token")
        verifier = request.verifier
        if not draft.is_chain and not verifier.takes_trees:
            raise ValueError(f"its drafts branch, and verifier={verifier.name!r} takes chains: use verifier='matching'")
