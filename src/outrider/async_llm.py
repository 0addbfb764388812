"""``AsyncLLM``: the same engine behind ``async for``, in a thread of its own."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any

from outrider.config import SamplingParams
from outrider.engine.request import Request, StepOutput
from outrider.errors import OutriderError
from outrider.llm import LLM, Message, Output, Prompt, Speculation

Event = StepOutput | BaseException | None  # None: the request has ended


class AsyncLLM:
    """Serves any number of tasks of one event loop at once.

        async with AsyncLLM("smollm2-135m-instruct", draft="ngram") as llm:
            async for step in llm.stream("Once upon a time"):
                print(step.text, end="")

    A task that is cancelled, or leaves its loop, frees its place in the engine within a step.
    """

    def __init__(self, model: str | LLM, **options: Any) -> None:
        """``model`` and ``options`` as for ``LLM``; an ``LLM`` is used as it is, and belongs to this object then."""
        self.llm = model if isinstance(model, LLM) else LLM(model, **options)
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._listeners: dict[str, Callable[[Event], None]] = {}
        self._requests: dict[str, Request] = {}
        self._thread = threading.Thread(target=self._serve, name="outrider-engine", daemon=True)
        self._thread.start()

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the engine's thread; requests that still run end with ``CancelledError``."""
        self._commands.put(None)
        self._thread.join()

    async def stream(
        self,
        prompt: Prompt | Sequence[Message],
        params: SamplingParams | None = None,
        *,
        speculation: Speculation = None,
        **scheduling: Any,
    ) -> AsyncIterator[StepOutput]:
        """Tokens as they are committed; see ``LLM.stream``."""
        request = self.llm.request(prompt, params, speculation, **scheduling)
        async for step in self._listen(request):
            yield step

    async def generate(
        self,
        prompt: Prompt | Sequence[Message],
        params: SamplingParams | None = None,
        *,
        speculation: Speculation = None,
        **scheduling: Any,
    ) -> Output:
        """The whole output of one prompt."""
        request = self.llm.request(prompt, params, speculation, **scheduling)
        return self.llm.output(request, [step async for step in self._listen(request)])

    async def _listen(self, request: Request) -> AsyncIterator[StepOutput]:
        loop, events = asyncio.get_running_loop(), asyncio.Queue[Event]()

        def tell(event: Event) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(events.put_nowait, event)

        self._commands.put(lambda: self._add(request, tell))
        try:
            while (event := await events.get()) is not None:
                if isinstance(event, BaseException):
                    raise event
                yield event
        finally:
            self._commands.put(lambda: self._drop(request.id))

    # -- on the engine's thread -----------------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            try:
                while not self.llm.engine.busy or not self._commands.empty():
                    command = self._commands.get()
                    if command is None:
                        self._end_all(asyncio.CancelledError("the engine was closed"))
                        return
                    command()
                for step in self.llm.engine.step():
                    self._listeners[step.request_id](step)
            except Exception as error:  # noqa: BLE001  whoever waits must hear of it, and the thread must live
                self._end_all(error)
                continue
            for request in [r for r in self._requests.values() if r.finish_reason is not None or r.error is not None]:
                self._listeners[request.id](request.error)
                self._drop(request.id)

    def _add(self, request: Request, tell: Callable[[Event], None]) -> None:
        try:
            self.llm.engine.add(request)
        except OutriderError as error:  # its own fault: nobody else hears of it
            tell(error)
        else:
            self._requests[request.id], self._listeners[request.id] = request, tell

    def _drop(self, request_id: str) -> None:
        if self._requests.pop(request_id, None) is not None:
            del self._listeners[request_id]
            self.llm.engine.abort(request_id)

    def _end_all(self, error: BaseException) -> None:
        for request_id in list(self._requests):
            self._listeners[request_id](error)
            self._drop(request_id)
