"""The draft source interface: requests in, drafts out. A wrong, late or failing source costs speed only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from outrider.cache import KVCache
from outrider.config import SamplingParams, SpeculationParams
from outrider.drafters.cost import DraftingCost
from outrider.models.inputs import InputSource
from outrider.verify.arrays import Array
from outrider.verify.constraint import Constraint
from outrider.verify.distribution import TargetRows
from outrider.verify.draft import Draft, Verdict
from outrider.verify.verifiers.base import DraftSampler


class RequestView(Protocol):
    """A draft source's read-only view of a running request."""

    @property
    def id(self) -> str: ...

    @property
    def tokens(self) -> Sequence[int]:
        """The prompt and every committed token; drafts continue from the last one."""
        ...

    @property
    def prompt_length(self) -> int: ...

    @property
    def params(self) -> SamplingParams: ...

    @property
    def slot(self) -> int | None:
        """The request's slot in the target's cache; None while it has none."""
        ...

    @property
    def num_computed_tokens(self) -> int:
        """The number of its tokens in the target's cache; at most all but the last."""
        ...

    @property
    def cache_salt(self) -> str:
        """Its domain: requests of different domains must not learn from each other (``utils.partitioned_store``)."""
        ...

    @property
    def prefix_keys(self) -> Sequence[int]:
        """The tokens as keys of cached rows: equal keys and ``prefix_salt`` mean equal rows."""
        ...

    @property
    def prefix_salt(self) -> str:
        """Its domain and its input: requests with another one share no rows."""
        ...

    @property
    def is_alone(self) -> bool:
        """Whether nothing of it is kept for others, or on a disk."""
        ...

    @property
    def tenant(self) -> str:
        """The tenant whose share of memory holds data learned from this request."""
        ...

    @property
    def input(self) -> InputSource:
        """The target's input besides the tokens, such as images; draft models read an encoder's input too."""
        ...

    @property
    def constraint(self) -> Constraint | None:
        """The constraint on its output; tokens that it forbids are never accepted."""
        ...

    @property
    def speculation(self) -> SpeculationParams: ...

    @property
    def depth_limit(self) -> int:
        """The most levels of a draft: more would exceed ``spec_length``, the context or ``max_tokens``."""
        ...

    def should_continue(self, source: str, paths: Sequence[Sequence[float]]) -> bool:
        """Whether a further level of ``source``'s draft is expected to save more time than it costs.

        ``paths``: for each frontier node, the source's probabilities along its path. For sources whose time grows with
        the levels of a draft. True without an estimate, and for drafts of fixed length.
        """
        ...

    @property
    def seconds_left(self) -> float:
        """The seconds left for drafting in this step; infinite unless other tenants wait for the step.

        For sources whose models read long texts: they read the rest in a later step.
        """
        ...

    def draws(self) -> DraftSampler:
        """The sampler for this step's draft tokens, which couples them with the target's draws if the verifier does."""
        ...


@dataclass(frozen=True)
class Outcome:
    """The result of a draft. ``committed`` is shorter than the verdict if the request ended within it."""

    request: RequestView
    draft: Draft
    verdict: Verdict
    committed: tuple[int, ...]
    p: TargetRows  # the target's rows at the last token (row 0) and after each node of the draft


class Drafter(ABC):
    """A draft source, shared by all requests that name it; its state per request is keyed by ``request.id``.

    The engine calls, for each request::

        start ── propose ── observe ── propose ── observe ── ... ── finish

    Only ``propose`` is required; the other methods are for drafters with a state.
    """

    def start(self, request: RequestView) -> None:  # noqa: B027  (a hook, and optional)
        """A request begins. After preemption it starts again, with its tokens so far."""

    @abstractmethod
    def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """One draft per request, of at most ``budgets[i]`` nodes; ``EMPTY`` for no draft.

        For a chain, the budget is the number of tokens. For a request with a tree, it is the number of nodes, and the
        tree should have at most ``depth_limit`` levels.
        """

    def observe(self, outcomes: Sequence[Outcome]) -> None:  # noqa: B027  (a hook, and optional)
        """Learn from a step: the committed tokens, and the target's rows at every draft node."""

    def finish(self, request_id: str) -> None:  # noqa: B027  (a hook, and optional)
        """The request has ended or was preempted. May be called repeatedly, and for unknown requests."""

    def time_drafts(self) -> DraftingCost | None:
        """The minimal cost of a draft, timed now; None for a drafter without an encoder."""
        return None

    @property
    def caches(self) -> Sequence[KVCache]:
        """The drafter's own caches, whose memory the engine reports and checks."""
        return ()


class SingleRequestDrafter(Drafter):
    """A draft source that drafts for one request at a time."""

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """``draft`` for each request in turn."""
        return [self.draft(request, budget) for request, budget in zip(requests, budgets, strict=True)]

    @abstractmethod
    def draft(self, request: RequestView, budget: int) -> Draft:
        """The draft for one request; see ``propose``."""


@runtime_checkable
class FeatureReader(Protocol):
    """A draft source that reads the target's hidden states, computed only for requests that name the source."""

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """The layers, counted from 1, whose output (the residual stream) is read, in ascending order."""
        ...

    def read(self, request: RequestView, start: int, features: Array) -> None:
        """Take the features [n, layers * d] of the request's committed tokens ``start`` to ``start + n - 1``.

        Called in order after each forward pass of the target, between ``start`` and ``finish`` of the request. Tokens
        from the prefix cache have no features, so ``start`` may skip tokens. If the request is read again, ``start``
        may go back.
        """
        ...
