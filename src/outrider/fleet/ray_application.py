"""The deployments of Ray Serve: engines, and an ingress for clusters that run Serve's own HTTP."""

from __future__ import annotations

from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

from outrider.fleet.ray_replicas import DEPLOYMENT, AddressRouter, EngineDeployment

MANY = (
    1 << 20
)  # requests that a replica may have at once, as far as Ray is concerned: the ingress has limits of its own
DRAIN_SECONDS = 600.0  # that a replica has to finish what it does when it is replaced


def engine_deployment(given: dict[str, Any], bounds: tuple[int, int]) -> Any:
    """Replicas of ``EngineDeployment``, as many as ``bounds`` say, bound to what they are given."""
    least, most = bounds
    options = given["options"]
    actor = {"num_cpus": options.get("threads") or 1, "num_gpus": 1 if options.get("device") == "cuda" else 0}
    scaling: dict[str, Any] = {"num_replicas": least}
    if most > least:
        policy = AutoscalingPolicy(policy_function="outrider.fleet.ray_replicas:wanted_replicas")
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
        health_check_period_s=2.0,
        request_router_config=RequestRouterConfig(request_router_class=AddressRouter),
        **scaling,
    )(EngineDeployment)
    return deployment.bind(given)
