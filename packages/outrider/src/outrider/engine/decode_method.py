"""The seam of decoding: how the tokens of a request are chosen. Sampling is built in; beam search is an extension."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.engine.drafting.rounds import Drafting
from outrider.engine.memory import CacheMemory
from outrider.engine.request import Request, StepOutput
from outrider.engine.runner import ScheduledRequest, TargetOutput
from outrider.engine.scheduler import ScheduledTokens
from outrider.engine.stats import EngineStats
from outrider.models.config import ModelConfig


@dataclass(frozen=True)
class EngineParts:
    """The parts of an engine that decode methods use."""

    memory: CacheMemory
    drafting: Drafting
    stats: EngineStats
    config: ModelConfig  # the target's
    stop_ids: Sequence[int]  # the model's end-of-text ids
    vocab_size: int  # columns of logits from there on are padding
    pass_seconds: Callable[[int, int], float]  # of a forward pass of one request, by its rows and its context


class DecodeMethod(ABC):
    """Chooses a request's tokens, from its part in a forward pass to what is emitted.

    The engine calls, for each request::

        begin ── schedule ── decide ── commit ── schedule ── decide ── commit ── ... ── finish
    """

    def begin(self, request: Request, parts: EngineParts) -> bool:
        """The request is queued. False if it never runs itself, because another request's run gives its output."""
        return True

    def num_rows(self, request: Request) -> int:
        """Rows of the cache that are needed before the next decision: one for each token."""
        return len(request.tokens)

    def draft_limit(self, request: Request) -> int:
        """Draft nodes worth proposing in this step."""
        return request.path_draft_limit

    @abstractmethod
    def schedule(self, part: ScheduledTokens[Request]) -> ScheduledRequest | None:
        """A request's part in the forward pass, with drafts of the method's own.

        None: the engine asks the draft sources, for all such requests at once.
        """

    @abstractmethod
    def decide(self, scheduled: ScheduledRequest, output: TargetOutput) -> Any:
        """What the rows that were scored decide; ``commit`` is given it.

        Raises:
            NumericalError: the target's distribution is none.
            GrammarError: the request's grammar breaks off.
        """

    @abstractmethod
    def commit(self, scheduled: ScheduledRequest, output: TargetOutput, decision: Any) -> list[StepOutput]:
        """Emit tokens, keep the accepted rows of the cache, and tell the draft sources what happened.

        ``decision`` is None where the pass had no row that decides. Raises ``NumericalError`` before it changes
        anything.
        """

    def start_over(self, request: Request) -> None:  # noqa: B027  (a hook, and optional)
        """The request is to be read again without drafts; its rows in the cache are gone."""

    def fail(self, request: Request) -> None:  # noqa: B027  (a hook, and optional)
        """The request has ended with ``request.error``."""

    def finish(self, request: Request) -> None:  # noqa: B027  (a hook, and optional)
        """The request has ended or was preempted: release what the method holds for it."""
