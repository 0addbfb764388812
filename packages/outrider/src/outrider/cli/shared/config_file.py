"""``--config FILE``: options of a command from a JSON object, such as ``outrider plan --write`` makes.

Keys are the command's options with underscores; the command line takes precedence.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.errors import ConfigError

OBJECTS = ("speculative_config", "models")
"""Options whose values may be objects."""


def _load(context: typer.Context, path: Path | None) -> Path | None:
    """Make the file's values the command's defaults, before any other option is read."""
    if path is not None:
        found = _read(path)
        known = {option.name: option for option in context.command.params}
        for name, value in list(found.items()):
            if name not in known or name == "config":
                raise ConfigError(
                    f"config={str(path)!r} names {name!r}, which is no option of `outrider {context.info_name}`"
                )
            if isinstance(value, dict) and name in OBJECTS:
                found[name] = [json.dumps(value)] if name == "models" else json.dumps(value)
            elif isinstance(value, dict):
                raise ConfigError(f"config={str(path)!r}: {name} must be a value or a list of values")
        context.default_map = {**(context.default_map or {}), **found}
    return path


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"config={str(path)!r} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"config={str(path)!r} is no JSON ({error}): make one with `outrider plan --write`") from None
    if not isinstance(found, dict):
        raise ConfigError(f'config={str(path)!r} is not a JSON object of options, such as {{"draft": "suffix"}}')
    return found


Config = Annotated[
    Path | None,
    typer.Option("--config", callback=_load, is_eager=True, help="JSON file of options (`outrider plan --write`)."),
]
