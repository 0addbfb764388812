"""Replicas for ``outrider serve``: its further options, and the server that they start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outrider.cli.shared.flags import FlagTable, describe
from outrider.errors import ConfigError
from outrider_fleet.settings import POLICIES, FleetSettings
from outrider_server.settings import ServerSettings

Settings = FleetSettings

describe(
    FleetSettings,
    FlagTable(
        headings={"Replicas": "fleet ray_address routing share_drafts traces"},
        rare="fleet ray_address routing share_drafts traces",
        shown={"replicas": "one", "ray_address": "of this machine"},
        choices={"fleet": lambda: ["ray", "processes"], "routing": lambda: list(POLICIES)},
    ),
)


def serve(settings: ServerSettings, fleet: FleetSettings, model: str, options: Mapping[str, Any]) -> int:
    """Serve replicas of a model until the server is stopped; the exit code."""
    if settings.models:
        raise ConfigError(
            "--replicas is for one model, and --models names several: serve each with replicas of its own"
        )
    if options.get("enable_lora"):
        raise ConfigError("--enable-lora does not go with --replicas: name the adapters in --lora-modules")
    if fleet.fleet == "ray":
        from outrider_fleet.ray.cluster import serve_on_ray

        return serve_on_ray(settings, fleet, model, **options)
    from outrider_fleet.ingress.server import serve_fleet

    return serve_fleet(settings, fleet, model, **options)
