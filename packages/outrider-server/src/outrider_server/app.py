"""The application: routes, and the guards before them."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from outrider.errors import OutriderError
from outrider_server import info
from outrider_server.anthropic import messages as anthropic
from outrider_server.anthropic.errors import anthropic_error
from outrider_server.audio import endpoint as audio
from outrider_server.embeddings import endpoint as embeddings
from outrider_server.http import openapi
from outrider_server.http.errors import ApiError, handle_error
from outrider_server.http.framing import FramingMiddleware
from outrider_server.http.guards import (
    AccessLogMiddleware,
    AllowedHostsMiddleware,
    ApiKeyMiddleware,
    SizeLimitMiddleware,
)
from outrider_server.llama_cpp import completion as llama_cpp
from outrider_server.llama_cpp import info as llama_cpp_info
from outrider_server.models import HoldMiddleware, Models
from outrider_server.ollama import generate as ollama
from outrider_server.ollama import info as ollama_info
from outrider_server.ollama import library as ollama_library
from outrider_server.ollama.errors import ollama_error
from outrider_server.openai import chat, completions, tokens
from outrider_server.playground import playground
from outrider_server.responses import endpoint as responses

ERROR_SHAPES = {"/v1/messages": anthropic_error, "/api/": ollama_error}
"""By the beginning of the path; OpenAI's elsewhere."""

ENDPOINTS = (
    *(chat, completions, tokens, info, embeddings, responses, audio),
    *(llama_cpp, llama_cpp_info, anthropic, ollama, ollama_info, ollama_library),
)

DESCRIPTION = "Speculative decoding with the same output. Unknown fields are refused, never ignored."


def create_app(models: Models) -> ASGIApp:
    """Everything HTTP asks for, served by ``models``."""
    app = FastAPI(title="Outrider", description=DESCRIPTION, docs_url=None, redoc_url=None)
    app.state.models = models
    for part in ENDPOINTS:
        app.include_router(part.router)
    if models.settings.playground:
        app.include_router(playground.router)
    for kind in (ApiError, OutriderError, Exception):
        app.add_exception_handler(kind, handle_error)
    app.add_exception_handler(HTTPException, _no_such_route)
    openapi.install(app)
    return _guarded(app, models)


def _guarded(app: FastAPI, models: Models) -> ASGIApp:
    settings = models.settings
    guarded: ASGIApp = SizeLimitMiddleware(
        HoldMiddleware(app),
        head=settings.max_header_bytes,
        body=settings.max_body_bytes,
        bodies={"/v1/audio/": settings.max_audio_bytes},
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
            ],
            expose_headers=["X-Request-Id", "Retry-After"],
        )
    if settings.hosts:
        guarded = AllowedHostsMiddleware(guarded, settings.hosts)
    return AccessLogMiddleware(FramingMiddleware(guarded), models.metrics, ERROR_SHAPES)


async def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    messages = {404: "there is nothing here: see /openapi.json", 405: "another method is needed: see /openapi.json"}
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    message = messages.get(error.status_code, "the request cannot be served")
    return ApiError(error.status_code, message, code=code, headers=error.headers).response()
