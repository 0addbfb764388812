"""``/api/tags``, ``/api/show``, ``/api/ps`` and ``/api/version``."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from outrider import __version__
from outrider_server.answer.switches import takes_tools
from outrider_server.http.errors import json_response
from outrider_server.http.openapi import documented, responses
from outrider_server.http.request_body import json_body
from outrider_server.models import Models
from outrider_server.ollama.keep_alive import named_service
from outrider_server.ollama.options import DEFAULTS, model_name, stored_options
from outrider_server.ollama.schema import OllamaErrorResponse, ShowRequest, ShowResponse
from outrider_server.service import Service

router = APIRouter()
_JSON = responses("The answer.", {"application/json": {"schema": {"type": "object"}}}, OllamaErrorResponse)
NEVER = "9999-12-31T23:59:59Z"  # when an idle model is unloaded


@router.get("/api/version", responses=_JSON)
async def ollama_version() -> Response:
    return json_response({"version": __version__})


@router.get("/api/tags", responses=_JSON)
async def tags(request: Request) -> Response:
    """The names this server answers to."""
    models: Models = request.app.state.models
    return json_response({"models": [_entry(service, name) for name, service in models.listed()]})


@router.get("/api/ps", responses=_JSON)
async def running(request: Request) -> Response:
    """Those that are loaded; a single model is, and stays so."""
    models: Models = request.app.state.models
    entries = []
    for name, service in models.listed():
        if service.state == "ready":
            on_gpu, entry = str(service.engine.llm.model.device) != "cpu", _entry(service, name)
            entry |= {"expires_at": _expiry(models, name), "context_length": service.max_seq_len}
            entries.append(entry | {"size_vram": entry["size"] if on_gpu else 0})
    return json_response({"models": entries})


def _expiry(models: Models, name: str) -> str:
    seconds = math.inf if models.pool is None else models.pool.find(name).expires_in
    try:
        return _time(datetime.now(UTC) + timedelta(seconds=seconds))
    except OverflowError:
        return NEVER


@router.post("/api/show", **documented(ShowRequest, ShowResponse, error=OllamaErrorResponse))
async def show(
    request: Request, body: Annotated[ShowRequest, Depends(json_body(ShowRequest, untyped=True))]
) -> Response:
    """Properties and abilities of the model."""
    service = await named_service(request, body.model or body.name)
    model_name(service, body.model or body.name)
    llm = service.engine.llm
    config, tokenizer = llm.model.config, llm.tokenizer
    family = _family(service)
    capabilities = ["completion", "embedding"]
    capabilities += ["tools"] if takes_tools(tokenizer.chat_template or "") else []
    capabilities += ["thinking"] if service.answer_format.thinking is not None else []
    answer = {
        "modelfile": "",
        "parameters": "\n".join(_parameters(DEFAULTS | stored_options(service))),
        "template": tokenizer.chat_template or "",
        "system": service.stored.system or "",
        "details": _details(service),
        "model_info": {
            "general.architecture": family,
            f"{family}.context_length": service.max_seq_len,
            f"{family}.embedding_length": config.hidden_size,
            f"{family}.block_count": config.num_layers,
            f"{family}.vocab_size": config.vocab_size,
        },
        "capabilities": capabilities,
        "modified_at": _time(datetime.fromtimestamp(service.started, UTC)),
    }
    return json_response(answer)


def _parameters(options: Mapping[str, Any]) -> Iterator[str]:
    """A line for each value, as in a Modelfile."""
    for name, value in options.items():
        yield from (f"{name} {each}" for each in (value if isinstance(value, list) else [value]))


def _entry(service: Service, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "model": name,
        "modified_at": _time(datetime.fromtimestamp(service.started, UTC)),
        "size": service.engine.llm.memory_plan.target_weights if service.state == "ready" else 0,
        "digest": hashlib.sha256(service.fingerprint.encode()).hexdigest(),
        "details": _details(service),
    }


def _details(service: Service) -> dict[str, Any]:
    if service.state != "ready":
        return {}
    family, precision = _family(service), service.engine.llm.model.precision
    return {"family": family, "families": [family], "quantization_level": str(precision), "parent_model": ""}


def _family(service: Service) -> str:
    return "llama" if service.state != "ready" else service.engine.llm.model.config.family


def _time(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
