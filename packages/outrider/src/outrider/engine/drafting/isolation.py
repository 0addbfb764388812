"""Fault isolation of drafters: a failing drafter costs speed, never output."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np

from outrider.cache.protocol import KVCache
from outrider.drafters.api import Drafter, FeatureReader, Outcome
from outrider.drafters.cost import DraftingCost
from outrider.drafters.registry import DrafterRegistry
from outrider.engine.request import Request
from outrider.verify.arrays import Array
from outrider.verify.draft import Draft

logger = logging.getLogger(__name__)

MAX_SECONDS = 1.0  # allowed for one call of a drafter
MAX_SECONDS_PER_TOKEN = 0.02  # allowed in addition per token that is new to the drafter: draft models read prompts
MAX_OVERRUN = 3.0  # seconds over these limits in all, as a busy machine may stall any thread for a second
MAX_STRIKES = 3  # failures on requests of one tenant and kind until a drafter is switched off for all of them


class _Kind(NamedTuple):
    """The options of a request on which a drafter's failure may depend: few values, so that strikes add up."""

    tree: str  # empty: chains
    greedy: bool
    structured: bool
    shares_noise: bool

    @classmethod
    def of(cls, request: Request) -> _Kind:
        tree = request.speculation.tree
        shape = tree if isinstance(tree, str) else "static" if tree else ""
        return cls(shape, request.params.greedy, request.constraint is not None, request.verifier.shares_noise)


class IsolatedDrafters:
    """The drafters of an engine by name. Their exceptions do not reach the engine.

    A drafter that raises, takes too long, or returns an invalid draft is switched off for the requests of the call. The
    reason is logged once and kept in the requests' statistics. After ``MAX_STRIKES`` such requests it is switched off
    for later requests of the same tenant and kind. Other tenants are not affected, and a source that fails on trees
    still drafts chains.
    """

    def __init__(
        self,
        drafters: Mapping[str, Drafter],
        vocab_size: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.drafters = drafters
        self._vocab_size = vocab_size
        self._clock = clock
        self._deaf: dict[str, bool] = {}  # by drafter; asked for each request and step
        self._seen: dict[tuple[str, str], int] = {}  # (request, drafter) started -> tokens that the drafter has seen
        self._overrun: defaultdict[tuple[str, str], float] = defaultdict(float)  # seconds (request, drafter) was late
        self._strikes: Counter[tuple[str, str, _Kind]] = Counter()  # by tenant, drafter and kind of request

    @property
    def caches(self) -> list[KVCache]:
        """The caches of the draft models in use."""
        in_use = self.drafters.built if isinstance(self.drafters, DrafterRegistry) else self.drafters
        return [cache for drafter in in_use.values() for cache in getattr(drafter, "caches", ())]

    def time_drafts(self, name: str) -> DraftingCost | None:
        """See ``Drafter.time_drafts``; None also if that fails."""
        try:
            return self.drafters[name].time_drafts()
        except Exception:  # a drafter may fail in any way
            logger.exception("draft source %r does not tell what its drafts take", name)
            return None

    def start(self, request: Request) -> None:
        """Start the request's drafters, except those that have failed too often."""
        kind = _Kind.of(request)
        for name in request.speculation.combination.names:
            if self._strikes[request.tenant, name, kind] >= MAX_STRIKES and name not in request.drafts.disabled_sources:
                self._note(name, request, f"switched off after failing {MAX_STRIKES} requests of this kind")
            if name not in request.drafts.disabled_sources:
                self._seen[request.id, name] = 0
            self._call(name, [request], lambda drafter: drafter.start(request))

    def propose(self, name: str, requests: Sequence[Request], budgets: Sequence[int]) -> dict[str, Draft]:
        """A drafter's drafts by request id; requests after an invalid draft have none."""
        drafts: dict[str, Draft] = {}

        def call(drafter: Drafter) -> None:
            proposed = drafter.propose(requests, budgets)
            for request, budget, draft in zip(requests, budgets, proposed, strict=True):
                check_draft(draft, budget, request, self._vocab_size)
                drafts[request.id] = draft

        self._call(name, requests, call)
        for request in requests:
            self._seen[request.id, name] = len(request.tokens)
        return drafts

    def ask(self, name: str, request: Request, call: Callable[[Drafter], None]) -> None:
        """Make a decode method's own call of a drafter, for one request."""
        self._call(name, [request], call)
        self._seen[request.id, name] = len(request.tokens)

    def observe(self, request: Request, outcome: Outcome) -> None:
        """Report a draft's outcome to every drafter of the request."""
        for name in request.speculation.combination.names:
            if not self._is_deaf(name):
                self._call(name, [request], lambda drafter: drafter.observe([outcome]))

    def _is_deaf(self, name: str) -> bool:
        """Whether a drafter does not override ``observe``, which does nothing."""
        deaf = self._deaf.get(name)
        if deaf is None:
            observe = getattr(self.drafters.get(name), "observe", None)
            deaf = self._deaf[name] = getattr(observe, "__func__", None) is Drafter.observe
        return deaf

    def read(self, name: str, request: Request, start: int, features: Array) -> None:
        """Pass the features [n, layers * d] of committed tokens from ``start`` on to a drafter that reads features."""

        def call(drafter: Drafter) -> None:
            cast("FeatureReader", drafter).read(request, start, features)

        self._call(name, [request], call)

    def finish(self, request: Request) -> None:
        """Release the drafters' resources for the request, including drafters that were switched off.

        A failed release (out of memory, say) is tried once more, because its cache slot would be lost to all requests.
        """
        for name in request.speculation.combination.names:
            self._overrun.pop((request.id, name), None)
            if self._seen.pop((request.id, name), None) is not None:  # it was started
                for _ in range(2):
                    try:
                        self.drafters[name].finish(request.id)
                        break
                    except Exception:  # a drafter may fail in any way
                        logger.exception("draft source %r failed to release a request", name)

    def switch_off_all(self, request: Request, error: Exception) -> None:
        """Stop drafting for this request, without a strike for any drafter."""
        request.drafts.disabled_sources.update(request.speculation.combination.names)
        request.stats.draft_error = f"{type(error).__name__}: {error}"
        logger.warning("drafts switched off for a request: %s", request.stats.draft_error)

    def _call(self, name: str, requests: Sequence[Request], call: Callable[[Drafter], None]) -> None:
        """Call a drafter; on any failure, switch it off for the requests."""
        drafter = self.drafters.get(name)
        if drafter is None or name in requests[0].drafts.disabled_sources:
            return
        began = self._clock()
        try:
            call(drafter)
            self._check_time(name, requests, self._clock() - began)
        except Exception as error:  # noqa: BLE001  a drafter may fail in any way, and costs only speed
            self._switch_off(name, requests, error)

    def _check_time(self, name: str, requests: Sequence[Request], spent: float) -> None:
        """Raise TimeoutError if a drafter has exceeded its time for these requests by more than ``MAX_OVERRUN``."""
        if spent <= MAX_SECONDS:
            return
        allowed = MAX_SECONDS
        for request in requests:
            seen = self._seen.get((request.id, name), 0)
            encoded = 0 if seen else request.input.positions
            allowed += MAX_SECONDS_PER_TOKEN * (len(request.tokens) - seen + encoded)
        if spent > allowed:
            for request in requests:
                self._overrun[request.id, name] += spent - allowed
            if max(self._overrun[request.id, name] for request in requests) > MAX_OVERRUN:
                raise TimeoutError(f"it took {spent:.1f} s where {allowed:.1f} s are allowed")

    def _switch_off(self, name: str, requests: Sequence[Request], error: Exception) -> None:
        affected = [request for request in requests if name not in request.drafts.disabled_sources]
        if not affected:
            return
        for request in affected:
            self._note(name, request, f"{type(error).__name__}: {error}")
        strikes = {(request.tenant, name, _Kind.of(request)) for request in affected}
        self._strikes.update(strikes)
        lasting = f"for {len(affected)} request(s)"
        if any(self._strikes[strike] == MAX_STRIKES for strike in strikes):
            whose = "for this engine" if not affected[0].tenant else "for a caller"
            lasting = f"{whose}, as to requests of this kind"
        logger.warning("draft source %r switched off %s: %s: %s", name, lasting, type(error).__name__, error)

    def _note(self, name: str, request: Request, reason: str) -> None:
        request.drafts.disabled_sources.add(name)
        if len(request.speculation.combination.names) > 1:
            reason = f"{name}: {reason}"
        earlier = request.stats.draft_error
        request.stats.draft_error = reason if earlier is None else f"{earlier}; {reason}"


def check_draft(draft: Draft, budget: int, request: Request, vocab_size: int) -> None:
    """Raise ValueError unless the target can score the draft and the request's verifier takes it."""
    if len(draft) > budget:
        raise ValueError(f"it proposed {len(draft)} tokens where {budget} were allowed")
    for token in draft.tokens:
        if not isinstance(token, int) or not 0 <= token < vocab_size:
            raise ValueError(f"it proposed token {token!r}, outside the vocabulary of {vocab_size}")
    q = draft.q_logits
    if q is not None and not (isinstance(q, np.ndarray) and q.ndim == 2 and np.issubdtype(q.dtype, np.floating)):
        raise ValueError(f"its q_logits are {_described(q)}, not an array of floats, one for each node and token")
    verifier = request.verifier
    if not draft.is_chain and not verifier.takes_trees:
        raise ValueError(f"its drafts branch, and verifier={verifier.name!r} takes chains: use verifier='matching'")


def _described(q: object) -> str:
    return f"{q.dtype} {list(q.shape)}" if isinstance(q, np.ndarray) else f"a {type(q).__name__}"
