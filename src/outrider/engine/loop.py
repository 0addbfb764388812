"""An engine that its callers step themselves, in their own thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from outrider.engine.engine import Engine
from outrider.engine.request import Request, StepOutput
from outrider.errors import EngineDeadError


class EngineLoop:
    """Steps an engine while somebody waits for its tokens.

    Whoever steps it does so for all: tokens of other open requests are kept until they are asked for. For requests of
    other threads there is ``EngineThread``.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine: Engine | None = engine
        self._closed: EngineDeadError | None = None
        self._inboxes: dict[str, deque[StepOutput]] = {}

    @property
    def engine(self) -> Engine:
        """Raises ``EngineDeadError`` after ``close``."""
        if self._engine is None:
            assert self._closed is not None
            raise self._closed
        return self._engine

    def start(self, request: Request) -> None:
        """Add a request, which runs until ``finish``."""
        self.engine.add(request)
        self._inboxes[request.id] = deque()

    def step(self) -> None:
        """One step of the engine."""
        for step in self.engine.step():
            self._inboxes[step.request_id].append(step)

    def finish(self, request: Request) -> list[StepOutput]:
        """What a request has given; it leaves the engine, ended or not."""
        self.engine.abort(request.id)
        return list(self._inboxes.pop(request.id, ()))

    def run(self, requests: Sequence[Request], after_step: Callable[[], None]) -> list[list[StepOutput]]:
        """Run requests side by side to their ends, and return what each gave."""
        try:
            for request in requests:
                self.start(request)
            while any(map(_goes_on, requests)):
                self.step()
                after_step()
        finally:
            given = [self.finish(request) for request in requests]  # also after an interruption
        return given

    def stream(self, request: Request) -> Iterator[StepOutput]:
        """A request's tokens as they are committed; it is aborted when nobody wants more of them."""
        self.engine.add(request)
        inbox = self._inboxes[request.id] = deque()
        try:
            while inbox or _goes_on(request):
                if not inbox:
                    self.step()
                while inbox:
                    yield inbox.popleft()
        finally:
            if self._closed is None:
                self.engine.abort(request.id)
                del self._inboxes[request.id]
        if request.error is not None:
            raise request.error

    def close(self, error: EngineDeadError) -> None:
        """Abort all requests and let go of the engine; whoever asks for more afterwards gets ``error``."""
        for request_id in self._inboxes:
            self.engine.abort(request_id)
        self._closed, self._engine = error, None


def _goes_on(request: Request) -> bool:
    return request.finish_reason is None and request.error is None
