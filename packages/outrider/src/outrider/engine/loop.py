"""An engine that its callers step themselves, each in its own thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence

from outrider.engine.engine import Engine
from outrider.engine.request import Request, StepOutput
from outrider.errors import EngineDeadError, OutriderError
from outrider.utils.turns import TurnLock


class EngineLoop:
    """Steps an engine while any of its callers' threads waits for tokens.

    A step runs all open requests; other requests' tokens are kept until their callers ask for them. Threads take turns,
    so that their requests run side by side. For callers that must not block during a step, use ``EngineThread``.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine: Engine | None = engine
        self._closed: EngineDeadError | None = None
        self._inboxes: dict[str, deque[StepOutput]] = {}
        self._turn = TurnLock()
        self._left: deque[str] = deque()  # abandoned requests, to abort before the next step

    @property
    def engine(self) -> Engine:
        """Raises ``EngineDeadError`` after ``close``."""
        if self._engine is None:
            assert self._closed is not None
            raise self._closed
        return self._engine

    def start(self, request: Request) -> None:
        """Add a request, which runs until ``finish``."""
        with self._turn:
            self._abort_left()
            self.engine.add(request)
            self._inboxes[request.id] = deque()

    def step(self) -> None:
        """One step of the engine."""
        with self._turn:
            self._step()

    def finish(self, request: Request) -> list[StepOutput]:
        """Remove a request from the engine, ended or not, and return its remaining tokens."""
        with self._turn:
            self._abort_left()
            self.engine.abort(request.id)
            return list(self._inboxes.pop(request.id, ()))

    def run(self, requests: Sequence[Request], after_step: Callable[[], None]) -> list[list[StepOutput]]:
        """Run requests side by side to their ends, and return the tokens of each."""
        try:
            for request in requests:
                self.start(request)
            while any(map(_goes_on, requests)):
                self._step_for(requests)
                after_step()
        finally:
            given = [self.finish(request) for request in requests]  # also after an interruption
        return given

    def stream(self, request: Request) -> Generator[StepOutput]:
        """A request's tokens as they are committed; closing the iterator aborts the request."""
        self.start(request)
        inbox = self._inboxes[request.id]
        try:
            while inbox or _goes_on(request):
                with self._turn:
                    if not inbox and _goes_on(request):
                        self._step()
                while inbox:
                    yield inbox.popleft()
        finally:
            self._leave(request)
        if request.error is not None:
            raise request.error

    def pause(self, work: Callable[[], None], error: OutriderError | None) -> None:
        """Do ``work`` while no request is running or waiting.

        ``error``: ends those that do; None: they are run to their ends. Requests that begin meanwhile wait.
        """
        with self._turn:
            self._abort_left()
            if error is not None:
                self.engine.fail_all(error)
            while self.engine.busy:
                self._step()
            work()

    def close(self, error: EngineDeadError) -> None:
        """Abort all requests and release the engine; later calls raise ``error``."""
        with self._turn:
            for request_id in self._inboxes:
                self.engine.abort(request_id)
            self._closed, self._engine = error, None

    def _step(self) -> None:
        self._abort_left()
        for step in self.engine.step():
            self._inboxes[step.request_id].append(step)

    def _step_for(self, requests: Sequence[Request]) -> None:
        """A step, unless another thread has ended all of ``requests`` meanwhile."""
        with self._turn:
            if any(map(_goes_on, requests)):
                self._step()

    def _leave(self, request: Request) -> None:
        """Abort a request, without waiting for a step: a stream may be garbage-collected within one."""
        self._left.append(request.id)
        if self._turn.take_if_free():
            try:
                self._abort_left()
            finally:
                self._turn.release()

    def _abort_left(self) -> None:
        while self._left:
            request_id = self._left.popleft()
            if self._engine is not None:
                self._engine.abort(request_id)
            self._inboxes.pop(request_id, None)


def _goes_on(request: Request) -> bool:
    return request.finish_reason is None and request.error is None
