"""``outrider serve``: an OpenAI-compatible server with a playground."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import typer

from outrider.cli.shared import options as o
from outrider.cli.shared.config_file import Config
from outrider.cli.shared.flags import FlagTable, describe
from outrider.cli.shared.generated import Given, options_from
from outrider.cli.shared.help import alone
from outrider.config import EngineConfig, SpeculationParams, engine_config
from outrider.errors import ConfigError
from outrider.extensions import extension, has_extension
from outrider_server.model_specs import parse_models
from outrider_server.settings import ServerSettings

describe(
    ServerSettings,
    FlagTable(
        headings={
            "Access": "api_keys api_key_file metrics_key share_across_keys allow_lossy cors_origins allowed_hosts "
            "ssl_certfile ssl_keyfile",
            "Limits": "max_tokens max_queue scheduling_policy max_body_bytes request_timeout drain_timeout",
        },
        rare="metrics_key metrics_prefix share_across_keys allow_lossy scheduling_policy "
        "uds served_model_names max_loaded_models model_idle_seconds playground log_level log_format record "
        "cors_origins allowed_hosts request_timeout max_body_bytes drain_timeout stream_interval stream_padding",
        shown={
            "served_model_names": "the model",
            "models": "only --model",
            "max_loaded_models": "all",
            "model_idle_seconds": "never",
            "allowed_hosts": "see docs",
            "max_tokens": "the context",
            "record": "nowhere",
        },
        choices={
            "log_level": lambda: ["debug", "info", "warning", "error"],
            "log_format": lambda: ["text", "json"],
            "scheduling_policy": lambda: ["fcfs", "priority"],
        },
        singular={
            "served_model_names": "served_model_name",
            "api_keys": "api_key",
            "cors_origins": "cors_origin",
            "allowed_hosts": "allowed_host",
        },
        read={"models": (list[str], parse_models)},
    ),
)


@dataclass(frozen=True)
class _NoFleet:
    """The one option of replicas that exists where their distribution is not installed."""

    replicas: str | None = None


_FLEET: type[Any] = extension("replicas", "fleet").Settings if has_extension("replicas", "fleet") else _NoFleet


@options_from(SpeculationParams, EngineConfig, ServerSettings, _FLEET, but=("prediction", "limits"))
def serve(
    model: o.Model = o.DEFAULT_MODEL,
    config: Config = None,
    *,
    given: Given,
) -> None:
    """Serve a model, or several (--models), to OpenAI's clients, with a playground at /.

    Every option can also be set in the environment: --max-queue as OUTRIDER_MAX_QUEUE. Options that may be repeated
    take several values there, separated by spaces.

    Example: outrider serve --draft lookup --api-key-file keys.txt
    """
    settings = ServerSettings(**o.own(ServerSettings, given))
    options = o.engine(given)
    if settings.models and model != o.DEFAULT_MODEL:
        raise ConfigError(f"model={model!r} and models are both given: name all models in --models")
    _check_engines(settings, model, options)  # refuse wrong options before a model is loaded
    settings.keys  # noqa: B018  and a key file that cannot be read
    fleet = _FLEET(**o.own(_FLEET, given))
    if fleet.replicas is not None:
        if settings.record is not None:
            raise ConfigError("record is for one engine: leave it out, or --replicas")
        serve_replicas = extension("replicas", "fleet", "--replicas").serve
        raise typer.Exit(serve_replicas(settings, fleet, model, options))
    from outrider_server.run import serve as run

    raise typer.Exit(run(settings, model=model, **options))


def _check_engines(settings: ServerSettings, model: str, options: Mapping[str, Any]) -> None:
    """Raise ConfigError for options that no engine takes."""
    if not settings.models:
        engine_config(model, **options)
    for spec in settings.models:
        try:
            engine_config(spec.model, **{**options, **spec.options})
        except ConfigError as error:
            raise ConfigError(f"models: {spec.name}: {error}") from None


app = alone("serve", serve, context_settings={"auto_envvar_prefix": "OUTRIDER"})
