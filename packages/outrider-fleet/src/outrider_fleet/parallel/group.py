"""The operations between processes that run one model together, over any connection."""

from __future__ import annotations

from typing import Any, Protocol

from outrider.models.shard import Exchange


class LeaderLink(Protocol):
    """The other processes, as the first one reaches them."""

    @property
    def size(self) -> int:
        """Processes, the first one included."""
        ...

    @property
    def exchange(self) -> Exchange: ...

    @property
    def threads(self) -> int | None:
        """Threads of each process where all share a machine and nothing else was asked for; None: as torch has them."""
        ...

    def send(self, message: bytes) -> None:
        """Give all others a message. Raises EngineDeadError if one of them is gone."""
        ...

    def answers(self) -> list[Any]:
        """One answer of each. Raises EngineDeadError if one of them is gone."""
        ...

    def why_lost(self) -> str:
        """The fate of the process that is gone, in words that begin a sentence."""
        ...

    def close(self) -> None:
        """End the others."""
        ...


class FollowerLink(Protocol):
    """The first process, as another one reaches it."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def exchange(self) -> Exchange: ...

    def receive(self) -> tuple[bytes, bytes] | None:
        """The next message's JSON and numbers; None: the first process has ended."""
        ...

    def answer(self, value: Any) -> None: ...
