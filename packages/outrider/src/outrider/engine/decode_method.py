"""The interface that chooses a request's tokens. Sampling is built in; beam search is an extension."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.engine.drafting.rounds import Drafting
from outrider.engine.engine_stats import EngineStats
from outrider.engine.memory import CacheMemory
from outrider.engine.request import Request, StepOutput
from outrider.engine.runner import ScheduledRequest, TargetOutput
from outrider.engine.schedule import ScheduledTokens
from outrider.models.config import ModelConfig


@dataclass(frozen=True)
class EngineParts:
    """The parts of an engine that decode methods use."""

    memory: CacheMemory
    drafting: Drafting
    stats: EngineStats
    config: ModelConfig  # the target's
    stop_ids: Sequence[int]  # the model's end-of-text ids
    vocab_size: int  # later columns of logits are padding
    pass_seconds: Callable[[int, int], float]  # seconds of a forward pass of one request, by rows and context length


class DecodeMethod(ABC):
    """Chooses a request's tokens, from the rows of a forward pass to the emitted tokens.

    The engine calls, for each request::

        begin ── schedule ── decide ── commit ── schedule ── decide ── commit ── ... ── finish
    """

    def begin(self, request: Request, parts: EngineParts) -> bool:
        """Before the request is queued. False if it never runs itself, because another request gives its output."""
        return True

    def num_rows(self, request: Request) -> int:
        """The number of cache rows required for the next decision: one per token."""
        return len(request.tokens)

    def draft_limit(self, request: Request) -> int:
        """The most draft nodes that can be used in this step."""
        return request.path_draft_limit

    def chunk(self, request: Request, most: int) -> int:
        """The pending rows to read in the next pass, at most ``most``."""
        return most

    @abstractmethod
    def schedule(self, part: ScheduledTokens[Request]) -> ScheduledRequest | None:
        """The request's rows in the forward pass, with drafts of the method's own.

        None: the engine asks the draft sources, for all requests of that kind at once.
        """

    @abstractmethod
    def decide(self, scheduled: ScheduledRequest, output: TargetOutput) -> Any:
        """The decision from the scored rows, for ``commit``.

        Raises:
            NumericalError: the logits are not finite, or exclude every token.
            GrammarError: the request's grammar allows no token.
        """

    @abstractmethod
    def commit(self, scheduled: ScheduledRequest, output: TargetOutput, decision: Any) -> list[StepOutput]:
        """Emit tokens, keep the accepted rows of the cache, and report the outcome to the draft sources.

        ``decision``: None if the pass only read the prompt. Raises ``NumericalError`` before any change.
        """

    def start_over(self, request: Request) -> None:  # noqa: B027  (a hook, and optional)
        """The request will be read again without drafts; its cache rows have been dropped."""

    def fail(self, request: Request) -> None:  # noqa: B027  (a hook, and optional)
        """The request has ended with ``request.error``."""

    def finish(self, request: Request) -> None:  # noqa: B027  (a hook, and optional)
        """The request has ended or was preempted: release the method's resources for it."""
