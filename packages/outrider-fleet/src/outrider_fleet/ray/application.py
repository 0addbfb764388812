"""The deployments of Ray Serve: engines, and an ingress for clusters that run Serve's own HTTP."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig
from ray.serve.schema import LoggingConfig
from starlette.types import ASGIApp, Receive, Scope, Send

from outrider.utils.garbage import freeze_gc
from outrider_fleet.ingress.server import FleetService
from outrider_fleet.ray.replicas import DEPLOYMENT, AddressRouter, EngineDeployment, follow
from outrider_fleet.settings import FleetSettings
from outrider_server.app import create_app
from outrider_server.http.logs import configure
from outrider_server.model_specs import usual_name
from outrider_server.models import Models
from outrider_server.service import Service
from outrider_server.settings import ServerSettings

MANY = (
    1 << 20
)  # requests that a replica may have at once, as far as Ray is concerned: the ingress has limits of its own
DRAIN_SECONDS = 600.0  # that a replica has to finish its requests when it is replaced


def engine_deployment(given: dict[str, Any], bounds: tuple[int, int]) -> Any:
    """Replicas of ``EngineDeployment``, as many as ``bounds`` say, bound to their arguments."""
    least, most = bounds
    options = given["options"]
    actor = {"num_cpus": options.get("threads") or 1, "num_gpus": 1 if options.get("device") == "cuda" else 0}
    scaling: dict[str, Any] = {"num_replicas": least}
    if most > least:
        policy = AutoscalingPolicy(policy_function="outrider_fleet.ray.replicas:wanted_replicas")
        scaling = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=least, max_replicas=most, policy=policy, upscale_delay_s=0.0, downscale_delay_s=0.0
            )
        }
    deployment = serve.deployment(
        name=DEPLOYMENT,
        ray_actor_options=actor,
        max_ongoing_requests=MANY,
        graceful_shutdown_timeout_s=DRAIN_SECONDS,
        health_check_period_s=0.5,
        logging_config=LoggingConfig(enable_access_log=False),  # a line for every look at a replica
        request_router_config=RequestRouterConfig(request_router_class=AddressRouter),
        **scaling,
    )(EngineDeployment)
    return deployment.bind(given)


def application(settings: ServerSettings, fleet: FleetSettings, given: dict[str, Any]) -> Any:
    """An application of Ray Serve: our server as its ingress, behind Serve's own HTTP, and the engines."""
    fields, more = dataclasses.asdict(settings), dataclasses.asdict(fleet)

    def build() -> ASGIApp:
        return ingress(ServerSettings(**fields), FleetSettings(**more), given["model"], given["token"])

    class Ingress:
        def __init__(self, engine: Any) -> None:
            """``engine``: so that the engines belong to the application."""

    deployment = serve.deployment(name="OutriderIngress", max_ongoing_requests=MANY)(serve.ingress(build)(Ingress))
    return deployment.bind(engine_deployment(given, fleet.bounds))


def ingress(settings: ServerSettings, fleet: FleetSettings, model: str, token: str) -> ASGIApp:
    """Our server over the engines of the application that it is a part of; follows them from its first event on."""
    configure(settings)
    freeze_gc()
    service = Service(settings, usual_name(model))
    joined = FleetService(service, fleet, model)
    joined.switches_at_once = True
    inner, name = create_app(Models.of(service)), serve.get_replica_context().app_name
    following: list[asyncio.Task[None]] = []

    async def with_engines(scope: Scope, receive: Receive, send: Send) -> None:
        if not following:
            handle = serve.get_deployment_handle(DEPLOYMENT, name)
            following.append(asyncio.ensure_future(follow(joined.pool, handle, name, token)))
        await inner(scope, receive, send)

    return with_engines
