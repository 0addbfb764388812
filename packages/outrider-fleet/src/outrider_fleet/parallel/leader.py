"""The first process's side: it tells the others of every forward pass and of every move of cached rows."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

from outrider.cache.protocol import CacheSpec, KVCache
from outrider.errors import EngineDeadError
from outrider.models.batch import ForwardBatch
from outrider.models.shard import Followers
from outrider_fleet.parallel.group import LeaderLink
from outrider_fleet.parallel.messages import Operation, encode, frame


class Leader:
    """Keeps the caches of all processes alike: tables and lengths are here alone, rows are everywhere.

    Changes of rows are noted, and sent with the next forward pass, as one message.
    """

    def __init__(self, link: LeaderLink) -> None:
        self.link = link
        self.models = 0
        """Models whose shares the others have."""
        self._operations: list[Operation] = []
        self._numbers: weakref.WeakKeyDictionary[KVCache, int] = weakref.WeakKeyDictionary()
        self._next = 0
        self._lock = threading.Lock()
        self._death: str | None = None
        self.passes = 0
        self.sent_bytes = 0
        """To each of the others."""

    @contextlib.contextmanager
    def asking(self, request: Any) -> Iterator[Callable[[], list[Any]]]:
        """Send a message that is no pass; the result waits for the answers of all others."""
        with self._lock:
            self.link.send(frame(request))
            yield self.link.answers

    def of_model(self, number: int) -> Followers:
        """The setup of the model with this number."""
        return _ModelFollowers(self, number)

    def new_cache(self, model: int, cache: KVCache, spec: CacheSpec) -> None:
        number, self._next = self._next, self._next + 1
        self._numbers[cache] = number
        self._operations.append(["new", number, model, asdict(spec)])
        cache.pool.observers.append(_RowChanges(number, self._operations))
        weakref.finalize(cache, self._operations.append, ["drop", number])

    @contextlib.contextmanager
    def forward(self, batch: ForwardBatch, cache: KVCache) -> Iterator[None]:
        """While the caller computes its own share; raises EngineDeadError if a process is gone."""
        with self._lock:
            if self._death is not None:
                raise EngineDeadError(self._death)
            operations = self._operations[:]
            del self._operations[: len(operations)]
            message = encode(operations, self._numbers[cache], batch, cache)
            self.passes, self.sent_bytes = self.passes + 1, self.sent_bytes + len(message)
            try:
                self.link.send(message)
                yield
            except BaseException as error:
                self._death = self.link.why_lost()
                self.link.close()
                if isinstance(error, Exception):
                    raise EngineDeadError(self._death) from error
                raise


@dataclass(frozen=True)
class _ModelFollowers:
    leader: Leader
    model: int

    def new_cache(self, cache: KVCache, spec: CacheSpec) -> None:
        self.leader.new_cache(self.model, cache, spec)

    def forward(self, batch: ForwardBatch, cache: KVCache) -> AbstractContextManager[None]:
        return self.leader.forward(batch, cache)


class _RowChanges:
    """Notes the changes of one cache's rows."""

    def __init__(self, number: int, operations: list[Operation]) -> None:
        self._number, self._operations = number, operations

    def copied(self, targets: Sequence[int], sources: Sequence[int]) -> None:
        self._operations.append(["copy", self._number, list(targets), list(sources)])

    def zeroed(self, rows: Sequence[int]) -> None:
        self._operations.append(["zero", self._number, list(rows)])
