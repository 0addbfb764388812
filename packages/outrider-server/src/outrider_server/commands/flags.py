"""Help and shell completion of ``outrider serve`` for the server's settings."""

from __future__ import annotations

from outrider.cli.shared.flags import FlagTable, describe
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
        "uds served_model_names max_loaded_models model_idle_seconds playground log_level log_format log_prompts "
        "cors_origins allowed_hosts request_timeout max_body_bytes drain_timeout stream_interval stream_padding",
        shown={
            "served_model_names": "the model",
            "models": "only --model",
            "max_loaded_models": "all",
            "model_idle_seconds": "never",
            "allowed_hosts": "see docs",
            "max_tokens": "the context",
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
