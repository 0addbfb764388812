"""Requests and memory as the scheduler sees them, and its plan of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from outrider.engine.fair_queue import Queueable


class Schedulable(Queueable, Protocol):
    """A request, as far as the scheduler sees it."""

    @property
    def num_pending_tokens(self) -> int:
        """Tokens that are not in the cache yet; 1 when decoding."""
        ...

    @property
    def tokens_of_budget(self) -> int:
        """The budget that each pending token takes: 1, or more for expensive tokens."""
        ...

    @property
    def draft_limit(self) -> int:
        """The most draft tokens that the request can use in this step."""
        ...

    def chunk(self, most: int) -> int:
        """The pending tokens to read in one pass, where there is room for ``most``: fewer if reading must pause.

        0 while rows that were computed before are on their way into the request's slot.
        """
        ...


R = TypeVar("R", bound=Schedulable)


class Memory(Protocol[R]):  # type: ignore[misc]
    """The caches of target and draft models, as far as the scheduler sees them."""

    def has_to_wait(self, request: R) -> bool:
        """Whether it waits for rows that another request is computing, and not for room."""
        ...

    def admit(self, request: R) -> bool:
        """Give a request that has not to wait a slot and its cached prefix, if there is room; returns whether."""
        ...

    def reserve(self, request: R, num_tokens: int) -> bool:
        """Reserve ``num_tokens`` further rows for a running request in this step; returns whether they were free."""
        ...

    def evict(self, request: R) -> None:
        """Release the slot and rows of a running request."""
        ...


@dataclass(frozen=True)
class ScheduledTokens(Generic[R]):
    """A request's share of a step: ``num_tokens`` pending tokens, and a draft of at most ``num_draft_tokens``."""

    request: R
    num_tokens: int
    num_draft_tokens: int


@dataclass(frozen=True)
class Schedule(Generic[R]):
    """The plan of one step. It is empty only if no request waits or runs, or all that run wait for saved rows."""

    scheduled: list[ScheduledTokens[R]]  # in order of rank
    admitted: list[R]  # requests that get a place in this step
    preempted: list[R]  # requests that lose their place in this step and wait again; none of them is admitted
