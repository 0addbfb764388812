"""Measures the cost of the ingress process: a server over one replica, and a client, all in this process.

::

    client ──► ingress, on a thread with its own event loop ──► replica: the measured engine
"""

from __future__ import annotations

import asyncio
import json
import secrets
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median

from outrider.errors import OutriderError
from outrider.llm import LLM
from outrider_fleet.ingress.pool import Member, ReplicaPool
from outrider_fleet.ingress.server import FleetServer
from outrider_fleet.replica.engine_host import EngineHost
from outrider_fleet.replica.sockets import SocketHost, SocketReplica
from outrider_fleet.settings import FleetSettings
from outrider_lab.fleet_planning.costs.machine import Machine
from outrider_server.http.listening import listen
from outrider_server.settings import ServerSettings

BEFORE = 0.6
"""Share of the time outside the ingress's work that passes before the router has the request, as measured by
``benchmarks.fleet_events``."""
WORDS = "river stone light copper garden window silver engine paper mountain letter orange"
SHORT, LONG = 2, 18  # tokens of answers; their difference gives the work for a token
AT_ONCE, WAVES = 4, 6  # requests at once, and repetitions, for each length
LONE = 12  # requests without others


@dataclass(frozen=True)
class IngressCosts:
    """Costs in seconds, with the names of the fields of ``Machine``."""

    ingress_per_request: float
    ingress_per_token: float
    request_seconds: float
    response_seconds: float
    request_jitter: float

    def of(self, machine: Machine) -> Machine:
        """``machine`` with these costs."""
        return replace(machine, **asdict(self))


def split_costs(beside: Sequence[float], short: float, long: float, *, lengths: tuple[int, int]) -> IngressCosts:
    """Costs from measurements.

    The least of ``beside`` is the fixed part of every request; the mean excess over it is jitter.

    Args:
        beside: seconds to the first token of lone requests, at least two, without the seconds of the step.
        short, long: seconds of the ingress's work for an answer of ``lengths[0]`` and of ``lengths[1]`` tokens.
    """
    per_token = max(0.0, (long - short) / (lengths[1] - lengths[0]))
    per_request = max(0.0, short - lengths[0] * per_token)
    jitter = (fmean(beside) - min(beside)) * len(beside) / (len(beside) - 1)
    least = max(0.0, min(beside) - jitter / len(beside) - per_request - per_token)
    return IngressCosts(per_request, per_token, BEFORE * least, (1 - BEFORE) * least, jitter)


def measure_ingress(llm: LLM) -> IngressCosts | None:
    """Measure an ingress on this machine for a few seconds; None if the system cannot tell a thread's time.

    Closes ``llm``.
    """
    return asyncio.run(_measure(llm)) if hasattr(time, "pthread_getcpuclockid") else None


async def _measure(llm: LLM) -> IngressCosts:
    host = EngineHost(llm, "r0")
    text = WORDS[: llm.engine.max_seq_len // 2]  # a token has at least one byte
    try:
        async with _ingress(host, llm.config.model) as (port, working):

            async def ask(number: int, tokens: int) -> float:
                return await _first_token(port, f"{number} {text}"[: len(text)], tokens)

            async def wave(tokens: int) -> float:
                before = working()
                await asyncio.gather(*(ask(secrets.randbelow(1 << 30), tokens) for _ in range(AT_ONCE)))
                return (working() - before) / AT_ONCE

            for tokens in (SHORT, LONG):
                await wave(tokens)  # one-time costs
            short, long = [median([await wave(tokens) for _ in range(WAVES)]) for tokens in (SHORT, LONG)]
            beside = []
            for number in range(LONE):
                stepped = llm.engine.stats.busy_s
                first = await ask(number, 1)
                beside.append(first - (llm.engine.stats.busy_s - stepped))
    finally:
        await asyncio.to_thread(host.close)
    return split_costs(beside, short, long, lengths=(SHORT, LONG))


class _Here:
    """A backend of one replica, which runs already."""

    where, count, replaces_itself = "in this process", 1, False

    def __init__(self, replica: SocketReplica) -> None:
        self._replica = replica

    async def start(self, pool: ReplicaPool, on_failure: Callable[[int], None]) -> None:
        pool.add(self._replica)

    def ready(self, member: Member) -> None:
        """Nothing to do."""

    def lost(self, name: str) -> None:
        """Nothing to do: the replica is not replaced."""

    def adjust(self) -> None:
        """Nothing to do: there is always one replica."""

    async def roll(self, seconds: float, switch: Callable[[Member], Awaitable[None]]) -> None:
        """Nothing to do: the replica is not replaced."""

    async def close(self) -> None:
        """Nothing to do: the caller closes the host."""


@asynccontextmanager
async def _ingress(host: EngineHost, model: str) -> AsyncGenerator[tuple[int, Callable[[], float]]]:
    """An ingress before ``host``: its port, and a function for the seconds that its threads have worked."""
    settings = ServerSettings(port=0)
    listener = listen(settings)
    with tempfile.TemporaryDirectory(prefix="outrider-") as folder:
        path, token, before = str(Path(folder, "r0")), secrets.token_hex(16), set(threading.enumerate())
        sockets = SocketHost(path, token)
        sockets.host.set_result(host)
        replica = await sockets.listen()
        backend = _Here(SocketReplica("r0", path, token))
        server = FleetServer(settings, FleetSettings(replicas="1", fleet="processes"), listener, model, backend)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), name="outrider-ingress")
        thread.start()
        try:
            while server.models.state != "ready":
                if not thread.is_alive():
                    raise OutriderError("the ingress could not be measured: it ended") from server.failure
                await asyncio.sleep(0.01)
            own = [each for each in threading.enumerate() if each not in before and each.name.startswith("outrider-")]
            yield listener.getsockname()[1], lambda: sum(map(_seconds, own))
        finally:
            server.should_exit = server.force_exit = True
            await asyncio.to_thread(thread.join)
            server.models.close()
            replica.close()


def _seconds(thread: threading.Thread) -> float:
    """The processor time of a thread, in seconds."""
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident or 0))


async def _first_token(port: int, prompt: str, tokens: int) -> float:
    """Read a streamed answer to its end; return the seconds to its first event."""
    body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True}
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n"
    head += "Content-Type: application/json\r\nConnection: close\r\n\r\n"
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head.encode() + data)
        first = 0.0
        async for line in reader:
            if line.startswith(b"data: ") and not first:
                first = time.perf_counter() - began
        if not first:
            raise OutriderError("the ingress could not be measured: it did not answer")
        return first
    finally:
        writer.close()
