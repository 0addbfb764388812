"""``AsyncLLM``: the same engine behind ``async for``, in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any

from outrider.config import SamplingParams
from outrider.engine.request import Request, StepOutput
from outrider.engine.thread import EngineThread, Event
from outrider.errors import CapacityError
from outrider.input_processor import Message, Prompt, Speculation
from outrider.llm import LLM, Output


class AsyncLLM:
    """Serves any number of tasks of any event loop at once.

        async with AsyncLLM("smollm2-135m-instruct", draft="ngram") as llm:
            async for step in llm.stream("Once upon a time"):
                print(step.text, end="")

    A task that is cancelled, or leaves its loop, frees its place in the engine within a step.
    """

    def __init__(
        self, model: str | LLM, *, on_death: Callable[[BaseException], None] = lambda error: None, **options: Any
    ) -> None:
        """``model`` and ``options`` as for ``LLM``; an ``LLM`` is used as it is, and belongs to this object then.

        ``on_death`` is called on the engine's thread should that ever die (see ``EngineThread``).
        """
        self.llm = model if isinstance(model, LLM) else LLM(model, **options)
        self._thread = EngineThread(self.llm.engine, on_death=on_death)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """Whether requests can still be served."""
        return self._thread.alive

    def close(self) -> None:
        """Stop the engine's thread; requests that still run end with ``EngineDeadError``."""
        self._thread.close()

    async def stream(
        self,
        prompt: Prompt | Sequence[Message],
        params: SamplingParams | None = None,
        *,
        speculation: Speculation = None,
        **scheduling: Any,
    ) -> AsyncIterator[StepOutput]:
        """Tokens as they are committed; see ``LLM.stream``."""
        request = await self._request(prompt, params, speculation, **scheduling)
        async with aclosing(self.bursts([request])) as bursts:
            async for _, steps in bursts:
                for step in steps:
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
        request = await self._request(prompt, params, speculation, **scheduling)
        async with aclosing(self.bursts([request])) as bursts:
            steps = [step async for _, burst in bursts for step in burst]
        return self.llm.output(request, steps)

    async def _request(
        self, prompt: Prompt | Sequence[Message], params: SamplingParams | None, *more: Any, **scheduling: Any
    ) -> Request:
        if params is None or params.structured is None:
            return self.llm.request(prompt, params, *more, **scheduling)
        # Compiling a grammar may take seconds, which the loop's other tasks must not wait for.
        return await asyncio.to_thread(self.llm.request, prompt, params, *more, **scheduling)

    async def bursts(
        self, requests: Sequence[Request], *, backlog: int | None = None
    ) -> AsyncGenerator[tuple[int, list[StepOutput]]]:
        """What each step gave each of several requests: (index, tokens in order), until all have ended.

        Args:
            requests: made by ``llm.requests``, not yet queued. They leave the engine when the iteration ends, for
                whatever reason; close it (``contextlib.aclosing``) to free their places at once.
            backlog: tokens that may wait unread. A reader that falls further behind loses its requests.

        Raises:
            CapacityError: the reader was too slow.
            OutriderError: the first request that failed, which ends the others.
        """
        loop, events = asyncio.get_running_loop(), asyncio.Queue[tuple[int, Event]]()
        unread = 0

        def arrived(index: int, event: Event) -> None:
            nonlocal unread
            unread += len(event) if isinstance(event, list) else 0
            if backlog is not None and unread > backlog:
                for request in requests:
                    self._thread.drop(request.id)
                events.put_nowait((index, CapacityError(f"{unread} tokens wait unread, more than {backlog}")))
            else:
                events.put_nowait((index, event))

        def listener(index: int) -> Callable[[Event], None]:
            def tell(event: Event) -> None:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(arrived, index, event)

            return tell

        running = len(requests)
        try:
            for index, request in enumerate(requests):
                self._thread.submit(request, listener(index))
            while running:
                index, event = await events.get()
                if isinstance(event, BaseException):
                    raise event
                if event is None:
                    running -= 1
                else:
                    unread -= len(event)
                    yield index, event
        finally:
            for request in requests:
                self._thread.drop(request.id)
