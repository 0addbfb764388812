"""An application of Ray Serve, by command (``serve run outrider_fleet.serve:app model=...``) or in a file.

    applications:
      - name: outrider
        import_path: outrider_fleet.serve:app
        args: {model: smollm2-135m-instruct, replicas: "1:4", draft: suffix}

Arguments are the options of ``outrider serve``, with underscores; those about sockets and TLS are for Serve's own HTTP.
On the command line several values of one option are separated by commas.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import fields
from typing import Any

from outrider.config import engine_config
from outrider.errors import ConfigError
from outrider_fleet.settings import FleetSettings
from outrider_server.settings import ServerSettings

_SEVERAL = {"lora_modules", "extra_sources"} | {
    field.name for kind in (ServerSettings, FleetSettings) for field in fields(kind) if isinstance(field.default, tuple)
}


def app(args: dict[str, Any]) -> Any:
    """The application. Raises ConfigError for arguments that nothing takes."""
    given = {"model": "smollm2-135m-instruct", "replicas": "1"} | {
        name: _several(value) if name in _SEVERAL else _value(value) for name, value in args.items()
    }
    model = str(given.pop("model"))
    settings = ServerSettings(**_own(ServerSettings, given))
    fleet = FleetSettings(**_own(FleetSettings, given))
    if settings.models:
        raise ConfigError("models names several: give each model an application of its own")
    engine_config(model, **given)  # refuses unknown options
    from outrider_fleet.ray.application import application

    told = {"model": model, "options": given, "token": secrets.token_hex(32), "version": 0}
    told |= {"shares": fleet.share_drafts, "traces": fleet.traces}
    return application(settings, fleet, told | {"log_level": settings.log_level, "log_format": settings.log_format})


def _own(kind: type[Any], given: dict[str, Any]) -> dict[str, Any]:
    """Take the fields of the dataclass ``kind`` out of ``given``."""
    own = {field.name: given.pop(field.name) for field in fields(kind) if field.name in given}
    if "replicas" in own:
        own["replicas"] = str(own["replicas"])
    return own


def _several(value: Any) -> Any:
    """A text is one value or more, and no sequence of letters."""
    if isinstance(value, str):
        return tuple(part for part in value.split(",") if part)
    return tuple(value) if isinstance(value, list) else value


def _value(value: Any) -> Any:
    """``serve run`` gives every argument as text."""
    if not isinstance(value, str):
        return value
    if re.fullmatch(r"-?\d+(\.\d+)?", value):
        return float(value) if "." in value else int(value)
    return {"true": True, "false": False}.get(value.lower(), value)
