"""Endpoints about the server itself: models, health, version, metrics."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from outrider import __version__
from outrider.cli.shared.first_words import SMALL
from outrider.cli.suggest import larger_model
from outrider.llm import LLM
from outrider.models.config import ModelConfig
from outrider.models.layer_kinds import num_weights
from outrider.verify.verifiers.catalog import VERIFIERS
from outrider_server.answer.switches import takes_tools
from outrider_server.http.context import check_sees_all
from outrider_server.http.errors import ApiError, json_response
from outrider_server.http.openapi import responses
from outrider_server.models import Models
from outrider_server.service import Service

router = APIRouter()
_JSON = responses("The answer.", {"application/json": {"schema": {"type": "object"}}})


@router.get("/health", responses=_JSON)
async def health(request: Request) -> Response:
    """200 if requests can be served; 503 with the reason while loading, while shutting down, and once dead."""
    models: Models = request.app.state.models
    ready = models.state == "ready"
    return json_response({"status": "ok" if ready else models.state}, 200 if ready else 503)


@router.get("/v1/models", responses=_JSON)
@router.get("/models", include_in_schema=False)
async def models(request: Request) -> Response:
    """The names this server answers to, and the abilities of each loaded model."""
    entries = _models(request)
    names = list(entries)
    pages = {"has_more": False, "first_id": names[0], "last_id": names[-1]}  # for Anthropic's clients
    return json_response({"object": "list", "data": list(entries.values())} | pages)


@router.get("/v1/models/{name:path}", responses=_JSON)
async def model(request: Request, name: str) -> Response:
    """One of the models."""
    entries = _models(request)
    if name not in entries:
        raise ApiError(404, f"the model {name[:80]!r} is not served here", param="model", code="model_not_found")
    return json_response(entries[name])


def _models(request: Request) -> dict[str, dict[str, Any]]:
    """By name; with its status, as llama.cpp's router has it, where models come and go."""
    models: Models = request.app.state.models
    entries = {name: _model(service, name) for name, service in models.listed()}
    if models.pool is not None:
        for name, service in models.listed():
            status = {"ready": "loaded", "dead": "unloaded"}.get(service.state, service.state)
            entries[name]["status"] = {"value": status}
    return entries


def _model(service: Service, name: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"id": name, "object": "model", "created": service.started, "owned_by": "outrider"}
    if service.state != "ready":
        return entry
    llm = service.engine.llm
    speculation = llm.speculation

    def may_verify(name: str) -> bool:
        return VERIFIERS[name].exact or service.settings.allow_lossy or name == speculation.verifier

    return entry | {
        "root": name,
        "implementation": llm.model.implementation,
        "max_model_len": service.max_seq_len,
        "num_parameters": _num_parameters(llm),
        **_larger_model(llm),
        "has_chat_template": llm.tokenizer.chat_template is not None,
        "takes_tools": takes_tools(llm.tokenizer.chat_template or ""),
        "sees_images": llm.sees,
        "speculation": {
            "sources": ["none", *llm.drafters],
            "draft": speculation.draft,
            "spec_length": speculation.spec_length,
            "verifier": speculation.verifier,
            "verifiers": [name for name in VERIFIERS if may_verify(name)],
        },
    }


def _num_parameters(llm: LLM) -> int | None:
    """None where transformers' own code runs the model: its matrices are not known here."""
    own = llm.model.implementation in ("native", "torch") and isinstance(llm.model.config, ModelConfig)
    return num_weights(llm.model.config) if own else None


def _larger_model(llm: LLM) -> dict[str, str]:
    """Of a small model, a larger one that this machine has room for beside it."""
    better = larger_model() if (_num_parameters(llm) or SMALL) < SMALL else None
    return {} if better is None else {"larger_model": better.name}


@router.get("/version", responses=_JSON)
async def version() -> Response:
    return json_response({"version": __version__})


@router.get("/metrics", responses=responses("Prometheus' text format.", {"text/plain": {"schema": {"type": "string"}}}))
async def metrics(request: Request) -> Response:
    """Counters, for Prometheus. They are of all callers together, so not every key reads them."""
    check_sees_all(request)
    models: Models = request.app.state.models
    return Response(models.metrics_text(), media_type="text/plain; version=0.0.4; charset=utf-8")
