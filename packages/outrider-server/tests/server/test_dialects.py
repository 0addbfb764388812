"""Dialects are plug-ins: what is installed is mounted, with its own errors and limits, and nothing else is needed."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from fastapi import APIRouter, Request

from outrider.extensions import extension_names
from outrider_server.app import create_app
from outrider_server.dialect import Dialect, installed_dialects
from outrider_server.http.errors import ApiError, invalid
from outrider_server.models import Models
from outrider_server.service import Service
from outrider_server.settings import ServerSettings

PATHS = ("/v1/messages", "/v1/responses", "/v1/embeddings", "/api/chat", "/completion", "/v1/audio/transcriptions")


def answers(dialects: list[Dialect] | None, *paths: str, body: bytes = b"{}") -> list[httpx.Response]:
    """The answers of a server without a model to POST requests."""

    async def ask() -> list[httpx.Response]:
        service = Service(ServerSettings(playground=False), "none")
        transport = httpx.ASGITransport(create_app(Models.of(service), dialects))
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return [await client.post(path, content=body) for path in paths]
        finally:
            service.close()

    return asyncio.run(ask())


def test_every_installed_dialect_is_mounted() -> None:
    assert set(extension_names("server_apis")) >= {
        "anthropic",
        "audio",
        "embeddings",
        "llama_cpp",
        "ollama",
        "responses",
    }
    assert all(isinstance(dialect, Dialect) for dialect in installed_dialects())
    assert 404 not in [answer.status_code for answer in answers(None, *PATHS)]


def test_openai_needs_no_dialect() -> None:
    assert [answer.status_code for answer in answers([], *PATHS)] == [404] * len(PATHS)
    assert [answer.status_code for answer in answers([], "/v1/chat/completions")] == [415]


def test_a_dialect_brings_its_errors_and_its_limit() -> None:
    router = APIRouter()

    @router.post("/own/echo")
    async def echo(request: Request) -> None:
        raise invalid(f"{len(await request.body())} bytes")

    def shape(error: ApiError) -> dict[str, Any]:
        return {"own": error.short_message}

    own = Dialect((router,), {"/own/": shape}, lambda settings: {"/own/": settings.max_body_bytes + 1})
    size = ServerSettings().max_body_bytes
    assert answers([own], "/own/echo", body=b"x" * (size + 1))[0].json() == {"own": f"{size + 1} bytes"}
    assert answers([own], "/own/echo", body=b"x" * (size + 2))[0].status_code == 413
    assert "error" in answers([own], "/v1/completions")[0].json()
