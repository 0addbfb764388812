"""Dialects: further APIs of the server, found by the entry points of ``outrider.server_apis``.

A distribution adds a dialect by naming it in its ``pyproject.toml``::

    [project.entry-points."outrider.server_apis"]
    anthropic = "outrider_server.anthropic.messages:dialect"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fastapi import APIRouter

from outrider.extensions import extension, extension_names
from outrider_server.http.errors import ErrorShape
from outrider_server.settings import ServerSettings


@dataclass(frozen=True)
class Dialect:
    """The routes of an API, and how its paths differ from OpenAI's."""

    routers: tuple[APIRouter, ...]
    error_shapes: Mapping[str, ErrorShape] = field(default_factory=dict)
    """How errors are written, by the beginning of the path; OpenAI's elsewhere."""
    body_limits: Callable[[ServerSettings], Mapping[str, int]] = lambda _: {}
    """Bytes of a body, by the beginning of the path; ``max_body_bytes`` elsewhere."""


def installed_dialects() -> list[Dialect]:
    """Every installed dialect, in the order of their names."""
    return [extension("server_apis", name) for name in extension_names("server_apis")]
