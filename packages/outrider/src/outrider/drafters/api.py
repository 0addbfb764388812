"""What a draft source is: requests in, drafts out. It can be wrong, late or broken and cost only speed."""

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
from outrider.verify.verifiers import DraftSampler


class RequestView(Protocol):
    """What a draft source may see of a running request. Read only."""

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
        """Its place in the target's cache."""
        ...

    @property
    def num_computed_tokens(self) -> int:
        """How many of its tokens the target's cache holds; at most all but the last."""
        ...

    @property
    def cache_salt(self) -> str:
        """Its domain: requests with different ones must not learn from each other (``utils.partitioned_store``)."""
        ...

    @property
    def tenant(self) -> str:
        """Whose memory it takes for what is learned from it."""
        ...

    @property
    def input(self) -> InputSource:
        """What its target reads besides the tokens; an encoder's input is for draft models too."""
        ...

    @property
    def constraint(self) -> Constraint | None:
        """What its output must keep to; tokens it does not allow are never accepted."""
        ...

    @property
    def speculation(self) -> SpeculationParams: ...

    @property
    def depth_limit(self) -> int:
        """Levels of a draft worth proposing: more would exceed ``spec_length``, the context or ``max_tokens``."""
        ...

    def should_continue(self, source: str, paths: Sequence[Sequence[float]]) -> bool:
        """Whether a further level of ``source``'s draft is likely to pay.

        ``paths``: where it would, for each place the chances that it gives the tokens down to there. For sources whose
        time grows with the levels of a draft; true where nothing is known, and where the length is fixed.
        """
        ...

    @property
    def seconds_left(self) -> float:
        """Seconds of this step that are left for drafts; infinite unless others wait for it.

        For sources whose models read long texts: what is not read now is read in a later step.
        """
        ...

    def draws(self) -> DraftSampler:
        """How to draw this step's draft tokens so that they couple with the target's draws, if they may."""
        ...


@dataclass(frozen=True)
class Outcome:
    """What became of a draft. ``committed`` may be shorter than the verdict where the request stopped."""

    request: RequestView
    draft: Draft
    verdict: Verdict
    committed: tuple[int, ...]
    p: TargetRows  # the target's rows at the last token (row 0) and after each node of the draft


class Drafter(ABC):
    """A draft source, shared by all requests that name it; its state per request is keyed by ``request.id``.

    The engine calls, for each request::

        start ── propose ── observe ── propose ── observe ── ... ── finish

    Only ``propose`` is required. A drafter that learns nothing and keeps nothing leaves the others out.
    """

    def start(self, request: RequestView) -> None:  # noqa: B027  (a hook, and optional)
        """A request begins. A request that was preempted starts again, with the tokens it has by then."""

    @abstractmethod
    def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """One draft per request, of at most ``budgets[i]`` nodes; ``EMPTY`` where it has none.

        A budget is the number of levels for a chain, and that of nodes where the request asks for a tree, of which
        none should be deeper than its ``depth_limit``.
        """

    def observe(self, outcomes: Sequence[Outcome]) -> None:  # noqa: B027  (a hook, and optional)
        """A step is over: which tokens were committed, and the target's rows at every node of the draft."""

    def finish(self, request_id: str) -> None:  # noqa: B027  (a hook, and optional)
        """The request has ended, or was preempted. Called for unknown requests too, and more than once."""

    def time_drafts(self) -> DraftingCost | None:
        """What its drafts take at least, timed now; None for a drafter that runs no encoder before it drafts."""
        return None

    @property
    def caches(self) -> Sequence[KVCache]:
        """The caches it keeps, whose memory the engine reports and checks."""
        return ()


class SingleRequestDrafter(Drafter):
    """A draft source that gains nothing from drafting for several requests at once."""

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """``draft`` for each request in turn."""
        return [self.draft(request, budget) for request, budget in zip(requests, budgets, strict=True)]

    @abstractmethod
    def draft(self, request: RequestView, budget: int) -> Draft:
        """The draft for one request; see ``propose``."""


@runtime_checkable
class FeatureReader(Protocol):
    """A draft source that also reads the target's inner results; they are computed only for requests that name it."""

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """Which of them: the residual stream after so many layers each, in ascending order."""
        ...

    def read(self, request: RequestView, start: int, features: Array) -> None:
        """Take the features [n, layers * d] of the request's committed tokens ``start`` to ``start + n - 1``.

        Called after each run of the target, in order, between ``start`` and ``finish`` of the request. Tokens found in
        the prefix cache have not been run and have none, so ``start`` may lie beyond what was read so far; where a
        request is read again it may lie before it.
        """
        ...
