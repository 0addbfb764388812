"""One transcription in the server's engine, request by request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import cast

from outrider.engine.request import Request, StepOutput
from outrider.errors import EngineDeadError
from outrider_multimodal.speech import Segment, Transcript, TranscriptionOptions, read_sound
from outrider_multimodal.transcriber import RequestSteps, Transcriber
from outrider_server.generation import Reservation
from outrider_server.http.context import too_late
from outrider_server.service import Service


class Transcription:
    """One transcription: its place in the queue, and its segments as they are decoded."""

    def __init__(self, service: Service, tenant: str, deadline: float) -> None:
        """``deadline``: by the event loop's clock. Raises ApiError 429 if there is no room."""
        self._service, self._tenant, self._deadline = service, tenant, deadline
        self._reservation = Reservation(service, 1, tenant)
        self._found: list[Segment] = []
        self.transcript: Transcript | None = None  # set after the last segment

    def release(self) -> None:
        """Release the place in the queue."""
        self._reservation.release()

    async def start(self, data: bytes, name: str, options: TranscriptionOptions) -> None:
        """Decode the file outside the event loop. Raises ``InvalidRequestError`` if it is no sound."""
        service = self._service
        llm, most = service.engine.llm, service.settings.limits.max_audio_seconds
        domain = service.callers.domain(self._tenant, "")

        def begin() -> RequestSteps:
            transcriber: Transcriber = llm.transcriber
            if options.language is not None:
                transcriber.vocabulary.language(options.language)  # refused before anything is decoded
            return transcriber.steps(
                read_sound(data, name=name, most_seconds=most),
                options,
                {"on_segment": self._found.append, "scheduling": {"cache_salt": domain, "tenant": self._tenant}},
            )

        self._steps = await service.executors.run(begin)

    async def segments(self) -> AsyncGenerator[Segment]:
        """Segments as they are decoded; ``transcript`` is set after the last. The place is released at the end.

        Raises ApiError 504 when the request's time is up, and any error of ``AsyncLLM.bursts``.
        """
        given: list[StepOutput] | None = None
        try:
            while self.transcript is None:
                step = await self._service.executors.run(partial(_advance, self._steps, given))
                while self._found:
                    yield self._found.pop(0)
                if isinstance(step, Transcript):
                    self.transcript = step
                else:
                    given = await self._decode(step)
        except TimeoutError:
            raise too_late(self._service.settings) from None
        except EngineDeadError:
            raise self._service.stopped() from None
        finally:
            self.release()

    async def _decode(self, request: Request) -> list[StepOutput]:
        began, given = time.perf_counter(), list[StepOutput]()
        try:
            async with asyncio.timeout_at(self._deadline), aclosing(self._service.engine.bursts([request])) as bursts:
                async for _, steps in bursts:
                    given += steps
        finally:
            self._service.metrics.finished(request, time.perf_counter() - began)
        return given


def _advance(steps: RequestSteps, given: list[StepOutput] | None) -> Request | Transcript:
    """The next request, or the transcript."""
    try:
        return next(steps) if given is None else steps.send(given)
    except StopIteration as done:
        return cast("Transcript", done.value)
