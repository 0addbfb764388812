"""The application: routes, and the guards before them."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from outrider.errors import OutriderError
from outrider_server import info, weights
from outrider_server.dialect import Dialect, installed_dialects
from outrider_server.http import openapi
from outrider_server.http.errors import ApiError, handle_error
from outrider_server.http.guards import (
    AccessLogMiddleware,
    AllowedHostsMiddleware,
    ApiKeyMiddleware,
    SizeLimitMiddleware,
)
from outrider_server.models import HoldMiddleware, Models
from outrider_server.openai import chat, completions, tokens
from outrider_server.playground import pdf, playground

OPENAI = Dialect((chat.router, completions.router, tokens.router, info.router))

BROWSER_HEADERS = (
    *("Anthropic-Dangerous-Direct-Browser-Access", "OpenAI-Organization", "OpenAI-Project", "Idempotency-Key"),
    *(f"X-Stainless-{name}" for name in ("Lang", "Package-Version", "OS", "Arch", "Runtime", "Runtime-Version")),
    *(f"X-Stainless-{name}" for name in ("Retry-Count", "Timeout", "Helper", "Helper-Method", "Poll-Helper")),
)
"""Headers that the clients of OpenAI and Anthropic send from a page, and that nothing here reads."""

DESCRIPTION = "Speculative decoding with the same output. Unknown fields are refused, never ignored."


def create_app(models: Models, dialects: Sequence[Dialect] | None = None) -> ASGIApp:
    """The routes of OpenAI's API, of ``dialects`` (None: all installed) and of the playground, served by ``models``."""
    dialects = [OPENAI, *(installed_dialects() if dialects is None else dialects)]
    app = FastAPI(title="Outrider", description=DESCRIPTION, docs_url=None, redoc_url=None)
    app.state.models = models
    for router in [router for dialect in dialects for router in dialect.routers]:
        app.include_router(router)
    if weights.key():
        app.include_router(weights.router)
    if models.settings.playground:
        app.include_router(playground.router)
        app.include_router(pdf.router)
    for kind in (ApiError, OutriderError, Exception):
        app.add_exception_handler(kind, handle_error)
    app.add_exception_handler(HTTPException, _no_such_route)
    openapi.install(app)
    return _guarded(app, models, dialects)


def _guarded(app: FastAPI, models: Models, dialects: Sequence[Dialect]) -> ASGIApp:
    settings = models.settings
    guarded: ASGIApp = SizeLimitMiddleware(
        HoldMiddleware(app),
        head=settings.limits.max_header_bytes,
        body=settings.max_body_bytes,
        bodies={path: limit for each in dialects for path, limit in each.body_limits(settings).items()},
    )
    if settings.keys or settings.metrics_key is not None:
        guarded = ApiKeyMiddleware(guarded, settings, models.callers)
    if settings.cors_origins:
        guarded = CORSMiddleware(
            guarded,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=[
                "Authorization",
                "Content-Type",
                "X-Api-Key",
                "X-Request-Id",
                "Anthropic-Version",
                "Anthropic-Beta",
                *BROWSER_HEADERS,
            ],
            expose_headers=["X-Request-Id", "Retry-After"],
        )
    if settings.hosts:
        guarded = AllowedHostsMiddleware(guarded, settings.hosts)
    shapes = {path: shape for each in dialects for path, shape in each.error_shapes.items()}
    return AccessLogMiddleware(guarded, models.metrics, shapes)


async def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    messages = {404: "there is nothing here: see /openapi.json", 405: "another method is needed: see /openapi.json"}
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    message = messages.get(error.status_code, "the request cannot be served")
    return ApiError(error.status_code, message, code=code, headers=error.headers).response()
