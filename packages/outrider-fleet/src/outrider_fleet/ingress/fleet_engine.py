"""The engine of an ingress: requests go to replicas, and from one that is lost to another, as if nothing had been."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from outrider.async_llm import AsyncLLM
from outrider.engine.request import Request, StepOutput
from outrider.errors import CapacityError, EngineDeadError, OutriderError
from outrider_fleet.ingress.front import Front
from outrider_fleet.ingress.metrics import FleetMetrics
from outrider_fleet.ingress.pool import Member, ReplicaPool
from outrider_fleet.ingress.routing import MAX_PROMPT, Job, block_names
from outrider_fleet.messages.checks import check_part
from outrider_fleet.messages.remote_sequence import RemoteSequence, ReplicaDiffersError
from outrider_fleet.messages.replica import ReplicaLostError, RunFailedError
from outrider_fleet.messages.wire import Message, read_error, request_messages
from outrider_fleet.tracing import TraceSpan, traced
from outrider_server.http.context import REQUEST_ID, SESSION

logger = logging.getLogger(__name__)

MAX_FAILURES = 1  # failures of a live replica: a step that fails ends all its requests, of which one is at fault
MAX_LOSSES = 8  # replicas that a request may lose: one that kills all that serve it must not kill the next ones too

Event = list[StepOutput] | BaseException | None


class _Events:
    """Events that have arrived and have not been read."""

    def __init__(self, most: int | None) -> None:
        self._queue: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._unread, self._most = 0, most  # tokens

    def put(self, index: int, event: Event) -> None:
        """Raises CapacityError where too many tokens are unread: the sender stops, as the reader may never come."""
        self._unread += len(event) if isinstance(event, list) else 0
        if self._most is not None and self._unread > self._most and isinstance(event, list):
            raise CapacityError(f"{self._unread} tokens wait unread, more than {self._most}")
        self._queue.put_nowait((index, event))

    async def get(self) -> tuple[int, Event]:
        index, event = await self._queue.get()
        self._unread -= len(event) if isinstance(event, list) else 0
        return index, event


@dataclass
class _Call:
    """The sequences of one prompt: they share its prefix, so they go to one replica."""

    indices: list[int]
    sequences: list[RemoteSequence]
    lost: list[str] = field(default_factory=list)  # replicas that it ran on
    failures: int = 0  # of replicas that were not lost
    searches: bool = False  # for beams, which are nothing until all are found: begun again where a replica is lost

    @property
    def job(self) -> Job:
        request = self.sequences[0].request
        blocks = block_names(request.prompt[:MAX_PROMPT], request.prefix_salt)
        return Job(len(request.prompt), blocks, SESSION.get(), request.cache_salt)


class FleetEngine(AsyncLLM):
    """An ``AsyncLLM`` over the replicas of a pool."""

    def __init__(self, front: Front, pool: ReplicaPool, metrics: FleetMetrics) -> None:
        self.llm: Front = front
        self._pool, self._metrics = pool, metrics
        front.remote.count = pool.counts
        self._loop = asyncio.get_running_loop()
        self._open: set[_Events] = set()  # of requests that run
        self._closed = False

    @property
    def alive(self) -> bool:
        return not self._closed

    def close(self) -> None:
        """From any thread: end running requests with EngineDeadError. The pool's owner closes the pool."""
        self._closed = True
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end_all)

    def _end_all(self) -> None:
        for events in self._open:
            events.put(0, EngineDeadError("the server has stopped"))

    async def bursts(
        self, requests: Sequence[Request], *, backlog: int | None = None
    ) -> AsyncGenerator[tuple[int, list[StepOutput]]]:
        events = _Events(backlog)
        for request in requests:
            request.max_seq_len = self.llm.remote.max_seq_len  # as when an engine queues it
        with traced("outrider.request", None, {"outrider.request_id": REQUEST_ID.get()}) as span:
            serving = [asyncio.ensure_future(self._serve(call, events, span)) for call in _calls(requests)]
            running = len(requests)
            self._open.add(events)
            try:
                while running:
                    index, event = await events.get()
                    if isinstance(event, BaseException):
                        raise event
                    if event is None:
                        running -= 1
                        continue
                    yield index, event
                for request in requests:
                    span.ended(request)
            finally:
                self._open.discard(events)
                for task in serving:
                    task.cancel()
                await asyncio.wait(serving)

    async def _serve(self, call: _Call, events: _Events, span: TraceSpan) -> None:
        """Run a call to its end, on as many replicas as that takes."""
        try:
            while not all(sequence.finished for sequence in call.sequences):
                member = await self._pool.pick(call.job, self.llm.fingerprint, call.lost)
                try:
                    await self._run_on(member, call, events, span)
                except (ReplicaLostError, RunFailedError) as error:
                    self._go_on(call, member, error, span)
            for index in call.indices:
                events.put(index, None)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  passed on to the reader of the tokens
            events.put(call.indices[0], error)

    async def _run_on(self, member: Member, call: _Call, events: _Events, span: TraceSpan) -> None:
        """Raises ReplicaLostError, RunFailedError, ReplicaDiffersError, or the request's own error."""
        open_ = [
            (index, sequence)
            for index, sequence in zip(call.indices, call.sequences, strict=True)
            if not sequence.finished
        ]
        message: Message = {
            "requests": request_messages(
                [sequence.request for _, sequence in open_], [sequence.begin() for _, sequence in open_]
            ),
            "request_id": REQUEST_ID.get(),
            "name": f"{REQUEST_ID.get() or open_[0][1].request.id}",
            "trace": dict(span.header),
        }
        span.event("replica", name=member.name, attempt=len(call.lost))
        self._pool.begin(member, len(open_))
        try:
            async with aclosing(member.replica.run(message)) as parts:
                found: list[list[Message]] = [[] for _ in open_]  # by a search that is not over
                async for part in parts:
                    check_part(member.name, part, len(open_), self.llm.remote.vocab_size)
                    if "error" in part:
                        self._raise(part["error"], member)
                    if "done" in part:
                        if call.searches:
                            self._pass_on_all(member, open_, found, part["found"], events)
                        break
                    if call.searches:
                        found[part["i"]].append(part)
                        continue
                    index, sequence = open_[part["i"]]
                    self._pass_on(member, index, sequence.take(part), events)
                    await asyncio.sleep(0)  # others first: frames may wait in the buffer by the hundred
        except ReplicaDiffersError as error:
            self._metrics.differing.inc()
            logger.error("replica %s differs from what was sent before: %s", member.name, error)
            raise OutriderError("two replicas disagree about this answer: ask again, and see the log") from None
        finally:
            self._pool.end(member, len(open_))
        if not all(sequence.finished for _, sequence in open_):
            raise ReplicaLostError(f"{member.name}: its answer ended early")

    def _pass_on(self, member: Member, index: int, steps: list[StepOutput], events: _Events) -> None:
        self._pool.relay(member, len(steps))
        if steps:
            events.put(index, steps)

    def _pass_on_all(
        self,
        member: Member,
        open_: list[tuple[int, RemoteSequence]],
        bursts: list[list[Message]],
        ends: list[Any],
        events: _Events,
    ) -> None:
        """Pass on the outputs of a beam search."""
        for (index, sequence), own, end in zip(open_, bursts, ends, strict=True):
            self._pass_on(member, index, sequence.take_found(own, end), events)

    def _raise(self, message: Message, member: Member) -> None:
        error = read_error(message)
        if error is not None:
            raise error
        raise RunFailedError(f"{member.name}: {message['text']}")

    def _go_on(self, call: _Call, member: Member, error: Exception, span: TraceSpan) -> None:
        """Note that a replica is lost, or failed; raises OutriderError where that is too often for a request."""
        call.lost.append(member.name)
        if isinstance(error, ReplicaLostError):
            self._pool.lose(member.name)
        else:
            call.failures += 1
        self._metrics.resumed.inc(sum(not sequence.finished for sequence in call.sequences))
        sent = sum(len(sequence.request.output) for sequence in call.sequences)
        span.event("resume", lost=member.name, tokens=sent)
        logger.info(
            "resuming elsewhere after %d tokens: %s", sent, error, extra={"request_id": REQUEST_ID.get() or None}
        )
        if call.failures > MAX_FAILURES:
            raise OutriderError("the server failed to answer this request; its log says why")
        if len(call.lost) > MAX_LOSSES:
            self._metrics.abandoned.inc()
            raise OutriderError(f"{len(call.lost)} replicas were lost while they served this request: see the log")


def _calls(requests: Sequence[Request]) -> list[_Call]:
    """By prompt."""
    calls: dict[str, _Call] = {}
    for index, request in enumerate(requests):
        first = request.prefix_leader or request
        call = calls.setdefault(first.id, _Call([], [], searches=request.params.beam_width > 0))
        call.indices.append(index)
        call.sequences.append(RemoteSequence(request))
    return list(calls.values())
