"""A replica as an ingress sees it, over any transport."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from outrider_fleet.messages.wire import Message


class ReplicaLostError(Exception):
    """A replica has died, or can no longer be reached: its requests go on elsewhere."""


class RunFailedError(Exception):
    """A replica failed to serve one request, and goes on with all others."""


class Replica(Protocol):
    """One engine somewhere else."""

    @property
    def name(self) -> str: ...

    def run(self, message: Message) -> AsyncGenerator[Message]:
        """See ``EngineHost.run``. Raises ReplicaLostError if it ends before its end; closing it ends the sequences."""
        ...

    async def describe(self) -> Message:
        """See ``EngineHost.description``; waits until the model is loaded. Raises ReplicaLostError."""
        ...

    async def status(self) -> Message:
        """See ``EngineHost.status``. Raises ReplicaLostError."""
        ...

    async def teach(self, message: Message) -> None:
        """See ``EngineHost.teach``. Raises ReplicaLostError."""
        ...
