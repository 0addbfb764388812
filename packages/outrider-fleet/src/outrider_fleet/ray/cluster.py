"""``outrider serve --replicas N``: replicas on Ray Serve, on this machine or a cluster, behind our own server."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import secrets
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from outrider.errors import ConfigError
from outrider.utils.garbage import freeze_gc
from outrider_fleet.ingress.pool import Member, ReplicaPool
from outrider_fleet.ingress.server import FleetServer, prepare
from outrider_fleet.settings import FleetSettings
from outrider_server.http.listening import listen
from outrider_server.run import run
from outrider_server.settings import ServerSettings

logger = logging.getLogger(__name__)

APPLICATION = "outrider"
SPARE = "outrider_spare"  # a resource of Ray, see ``spares``


def serve_on_ray(settings: ServerSettings, fleet: FleetSettings, model: str, **options: Any) -> int:
    """As ``outrider_server.run.serve``. Raises ConfigError, in one line, where Ray is not installed."""
    require_ray()
    prepare(settings, fleet, options)
    listener = listen(settings)
    backend = RayBackend(settings, fleet, model, options)
    return run(FleetServer(settings, fleet, listener, model, backend), listener)


def require_ray() -> None:
    """Without importing it: it reads its environment when it is imported."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(
            "--replicas runs on Ray Serve, which is not installed: pip install 'outrider[scale]', or use "
            "--fleet processes for replicas on this machine alone"
        )


class RayBackend:
    """Starts Ray if none is named, and the deployment; follows its replicas."""

    def __init__(self, settings: ServerSettings, fleet: FleetSettings, model: str, options: dict[str, Any]) -> None:
        self._settings, self._fleet, self._model, self._options = settings, fleet, model, options
        self._token, self._version = secrets.token_hex(32), 0
        self.count, self.most = fleet.bounds
        self.where, self.replaces_itself = "on Ray Serve", True
        self._following: asyncio.Task[None] | None = None
        self._own = fleet.ray_address is None and "RAY_ADDRESS" not in os.environ  # the cluster, started for this
        self._deployed = False
        self._background = ThreadPoolExecutor(1, "spares")
        self._prepare_spare: Callable[[], None] = lambda: None

    async def start(self, pool: ReplicaPool, on_failure: Callable[[int], None]) -> None:
        """Returns when replicas are being loaded."""
        self._pool = pool
        try:
            await asyncio.to_thread(self._connect)
            handle = await asyncio.to_thread(self._deploy)
            freeze_gc()  # Ray's modules too, before the first request
        except ConfigError as error:
            logger.error("%s", error)
            return on_failure(1)
        except Exception:
            logger.exception("Ray could not be started")
            return on_failure(1)
        from outrider_fleet.ray.replicas import follow

        self._following = asyncio.ensure_future(follow(pool, handle, APPLICATION, self._token))

    def ready(self, member: Member) -> None:
        """It may have taken the worker that waited: another one is to wait."""
        self._background.submit(self._prepare_spare)

    def lost(self, name: str) -> None:
        """Ray sees for itself, and starts another one."""

    def adjust(self) -> None:
        """Ray scales by ``wanted_replicas``."""

    async def roll(self, seconds: float, switch: Callable[[Member], Awaitable[None]]) -> None:
        """Ray replaces replicas one after another; each finishes its requests."""
        self._version += 1
        await asyncio.to_thread(self._deploy)

    async def close(self) -> None:
        import ray
        from ray import serve

        if self._following is not None:
            self._following.cancel()
        self._background.shutdown(wait=False, cancel_futures=True)
        if not ray.is_initialized():  # later calls would look for a cluster, and might find another user's
            return
        with contextlib.suppress(Exception):  # the rest ends with the cluster
            if self._deployed:
                await asyncio.to_thread(serve.delete, APPLICATION)
            if self._own:
                await asyncio.to_thread(serve.shutdown)
            await asyncio.to_thread(ray.shutdown)

    def _connect(self) -> None:
        if self._own:  # before Ray is imported by the processes that it starts
            os.environ.setdefault("RAY_AUTH_MODE", "token")
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            os.environ.setdefault("RAY_worker_niceness", "0")  # of 15 beside anything else a replica takes minutes
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # without it Ray turns loopback into an
            # address that others reach, on Linux too
            os.environ.setdefault("RAY_preload_python_modules", "outrider_fleet.ray.replicas")  # by every worker
        import ray
        from ray import serve

        more: dict[str, Any] = {"address": self._fleet.ray_address}
        if self._own:
            cpus = max(os.cpu_count() or 1, self.most * self._options["threads"]) + 1  # one is the spare worker's
            more = {"address": "local", "include_dashboard": False, "num_cpus": cpus, "resources": {SPARE: 1}}
        ray.init(namespace=APPLICATION, logging_level="warning", log_to_driver=True, **more)
        serve.start(proxy_location="Disabled")
        if not self._own and APPLICATION in serve.status().applications:
            raise ConfigError(
                f"the Ray cluster already serves an application named {APPLICATION!r}, which would be replaced: end "
                f'it first, or delete what a lost server left: python -c "import ray; from ray import serve; '
                f"ray.init('{self._fleet.ray_address or 'auto'}'); serve.delete('{APPLICATION}')\""
            )
        if self._own:
            from outrider_fleet.ray.spares import Spares

            self._prepare_spare = Spares(SPARE).ask

    def _deploy(self) -> Any:
        from ray import serve

        from outrider_fleet.ray.application import engine_deployment

        settings, fleet = self._settings, self._fleet
        given = {"model": self._model, "options": self._options, "token": self._token, "version": self._version}
        given |= {"shares": fleet.share_drafts, "traces": fleet.traces}
        given |= {"log_level": settings.log_level, "log_format": settings.log_format}
        engine = engine_deployment(given, fleet.bounds)
        self._deployed = True
        serve.run(engine, name=APPLICATION, route_prefix=None)
        return serve.get_app_handle(APPLICATION)
