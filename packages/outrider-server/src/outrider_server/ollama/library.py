"""Ollama's endpoints that change its library of models: each is refused with the remedy."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from outrider_server.http.errors import ApiError, invalid, json_response
from outrider_server.http.openapi import documented
from outrider_server.http.request_body import json_body
from outrider_server.models import Models
from outrider_server.ollama.answers import LINES
from outrider_server.ollama.options import plain_name
from outrider_server.ollama.schema import OllamaErrorResponse, PullRequest, PullResponse

router = APIRouter()

_REMEDIES = {
    ("POST", "/api/push"): "a server here publishes nothing: upload the model's folder with the hub's own tools",
    ("POST", "/api/create"): "a server here makes no models: start one with outrider serve --models NAME=FOLDER",
    ("POST", "/api/copy"): "a server here copies no models: name one twice, as in outrider serve --models a=M,b=M",
    ("DELETE", "/api/delete"): "a server here removes no models: use the command outrider rm NAME",
    ("POST", "/api/blobs/{digest}"): "a server here takes no files: start one with outrider serve --models NAME=FILE",
}


@router.post("/api/pull", **documented(PullRequest, PullResponse, stream=LINES.media_type, error=OllamaErrorResponse))
async def pull(
    request: Request, body: Annotated[PullRequest, Depends(json_body(PullRequest, untyped=True))]
) -> Response:
    """Says that a model is there, if it is served. Nothing is downloaded."""
    models: Models = request.app.state.models
    served = [name for name, _ in models.listed()]
    name = plain_name(body.model or body.name, served)
    if name is None:
        raise invalid("model is missing: it is required", "model", "missing_required_parameter")
    if name not in served and not any("*" in service.model_names for service in models.services):
        shown = name if len(name) <= 60 else f"{name[:60]}..."
        raise ApiError(
            404,
            f"the model {shown!r} is not served here, and a running server downloads none: start one with "
            f"outrider serve --model {shown}, or use {', '.join(served)}",
            param="model",
            code="model_not_found",
        )
    done = {"status": "success"}
    if body.stream is False:
        return json_response(done)
    return Response(LINES.event(done), media_type=LINES.media_type)


async def _refused(request: Request) -> Response:
    route: Any = request.scope["route"]
    raise invalid(_REMEDIES[request.method, route.path], code="unsupported")


for _method, _path in _REMEDIES:
    router.add_api_route(_path, _refused, methods=[_method], include_in_schema=False)
