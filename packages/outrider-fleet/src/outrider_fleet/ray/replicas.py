"""Replicas as a deployment of Ray Serve. Imported only where Ray is installed.

Ray places, heals and scales them. Which replica serves a request is decided in ``pool``, as everywhere: a call names
its replica, and ``AddressRouter`` brings it there. Messages are JSON in bytes with the token of the fleet: no object of
a request is ever pickled.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import AsyncGenerator
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from outrider.llm import LLM
from outrider.utils.garbage import freeze_gc
from outrider_fleet import tracing
from outrider_fleet.ingress.autoscaling import Autoscaler, Demand
from outrider_fleet.ingress.pool import ReplicaPool
from outrider_fleet.messages.replica import ReplicaLostError
from outrider_fleet.messages.wire import Message, decode, encode
from outrider_fleet.ray import directory
from outrider_fleet.replica.engine_host import EngineHost
from outrider_server.http.logs import configure
from outrider_server.settings import ServerSettings

DEPLOYMENT = "OutriderEngine"
PATIENCE = 10.0  # seconds for a live replica to answer a call that costs it nothing


class AddressRouter(RequestRouter):  # type: ignore[misc]  # Ray's classes are untyped
    """Brings a call to the replica that it names."""

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        directory.REPLICAS[self._deployment_id.app_name] = frozenset(each.replica_id.unique_id for each in replicas)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """One that has gone is not waited for: any other one answers that it is not meant."""
        target = None if pending_request is None else pending_request.kwargs.get("target")
        named = [each for each in candidate_replicas if each.replica_id.unique_id == target]
        return [named or candidate_replicas]


class EngineDeployment:
    """An ``EngineHost`` in an actor."""

    def __init__(self, given: dict[str, Any]) -> None:
        """``given``: model, options, token, shares, traces, log_level, log_format; ``version`` has them made anew."""
        configure(ServerSettings(log_level=given["log_level"], log_format=given["log_format"]))
        self._token = given["token"].encode()
        self._name = serve.get_replica_context().replica_id.unique_id
        if given["traces"]:
            tracing.enable(f"replica {self._name}")
        self._host = EngineHost(LLM(given["model"], **given["options"]), self._name, shares=given["shares"])
        freeze_gc()

    async def ask(self, data: bytes, *, target: str) -> bytes:
        """Answer to ``describe``, ``status`` or ``teach``."""
        message = self._read(data, target)
        answer: Message = {}
        if message["op"] == "describe":
            answer = self._host.description()
        elif message["op"] == "status":
            answer = self._host.status()
        elif message["op"] == "teach":
            self._host.teach(message)
        return encode(answer)

    async def run(self, data: bytes, *, target: str) -> AsyncGenerator[bytes]:
        """See ``EngineHost.run``."""
        async with contextlib.aclosing(self._host.run(self._read(data, target))) as parts:
            async for part in parts:
                yield encode(part)

    def check_health(self) -> None:
        """Ray replaces a replica for which this raises."""
        if not self._host.alive:
            raise RuntimeError("the engine has stopped")

    def record_autoscaling_stats(self) -> dict[str, float]:
        """For ``wanted_replicas``."""
        return {name: float(value) for name, value in self._host.load().items()}

    def _read(self, data: bytes, target: str) -> Message:
        message = decode(data)
        if not hmac.compare_digest(str(message.get("token", "")).encode(), self._token):
            raise PermissionError("this is not from an ingress of this fleet")
        if target != self._name:
            raise LookupError(f"{target} is not here any more")
        return message


_SCALERS: dict[tuple[int, int], Autoscaler] = {}


def wanted_replicas(context: Any) -> tuple[int, dict[str, Any]]:
    """The autoscaling policy for Ray, from the replicas' reports of queues and tokens."""
    bounds = context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas
    scaler = _SCALERS.setdefault(bounds, Autoscaler(*bounds))
    metrics = context.aggregated_metrics or {}
    names = metrics.get("places", {})
    demands = [
        Demand(round(metrics["sequences"][name]), round(metrics["places"][name]), round(metrics["tokens"][name]))
        for name in names
        if metrics["places"][name]
    ]
    return scaler.wanted(demands, context.current_time or 0.0), {}


class RayReplica:
    """The ingress's end; a ``Replica``."""

    def __init__(self, name: str, handle: DeploymentHandle, token: str) -> None:
        self._name, self._handle, self._token = name, handle, token

    @property
    def name(self) -> str:
        return self._name

    async def run(self, message: Message) -> AsyncGenerator[Message]:
        data = encode({**message, "token": self._token})
        parts = self._handle.options(stream=True).run.remote(data, target=self._name)
        try:
            async for part in parts:
                yield decode(part)
        except (RayError, RayServeException, LookupError, ConnectionError, ValueError) as error:
            raise ReplicaLostError(f"{self._name}: {type(error).__name__}") from None
        finally:
            parts.cancel()

    async def describe(self) -> Message:
        return await self._ask({"op": "describe"})

    async def status(self) -> Message:
        return await self._ask({"op": "status"})

    async def teach(self, message: Message) -> None:
        await self._ask({**message, "op": "teach"})

    async def _ask(self, message: Message) -> Message:
        try:
            async with asyncio.timeout(PATIENCE):
                return decode(
                    await self._handle.ask.remote(encode({**message, "token": self._token}), target=self._name)
                )
        except (RayError, RayServeException, LookupError, ConnectionError, ValueError, TimeoutError) as error:
            raise ReplicaLostError(f"{self._name}: {type(error).__name__}") from None


async def follow(pool: ReplicaPool, handle: DeploymentHandle, application: str, token: str) -> None:
    """Keep a pool's replicas those of a deployment, until cancelled."""
    handle._init()  # its router asks Ray for the replicas from now on, not from the first request
    while True:
        there = directory.REPLICAS.get(application, frozenset())
        for name in there - pool.watched:
            pool.add(RayReplica(name, handle, token))
        for name in pool.watched - there:
            pool.remove(name)  # it may finish its requests
        await asyncio.sleep(0.1)
