"""The OpenAPI document, for bodies that are not read by FastAPI itself."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from outrider import __version__

REF = "#/components/schemas/{model}"
ERRORS = {
    400: "The request cannot be served as it is.",
    403: "A web page of another site sent a form.",
    401: "The API key is missing or wrong.",
    404: "There is no such model.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    421: "The Host header names another server.",
    431: "The headers are too large.",
    429: "The queue is full; Retry-After says when to try again.",
    500: "The server failed.",
    503: "Not ready, or no longer.",
    504: "The request took too long.",
}


class ErrorDetails(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    """Every answer with a status of 400 or more."""

    error: ErrorDetails


_documented: dict[str, type[BaseModel]] = {}


def documented(
    request: type[BaseModel],
    response: type[BaseModel],
    *,
    stream: str = "text/event-stream",
    error: type[BaseModel] = ErrorResponse,
) -> dict[str, Any]:
    """Arguments of a route that takes ``request`` and answers with ``response``, a ``stream`` of it, or an error."""
    for model in (request, response, error):
        _documented[model.__name__] = model
    body = {"required": True, "content": _json(request)}
    answer = _json(response)
    if "stream" in request.model_fields:
        answer[stream] = {}  # a schema here would be read as one of the whole, or as one of each event
    return {"openapi_extra": {"requestBody": body}, "responses": responses("The answer.", answer, error)}


def documented_form(fields: type[BaseModel], response: type[BaseModel], *, streams: bool) -> dict[str, Any]:
    """Arguments of a route that takes a form of plain ``fields`` and a file, and answers with ``response`` or as text.

    ``streams``: or as events.
    """
    for model in (response, ErrorResponse):
        _documented[model.__name__] = model
    schema = fields.model_json_schema(ref_template=REF)
    schema["properties"]["file"] = {"type": "string", "format": "binary"}
    schema["required"] = [*schema.get("required", ()), "file"]
    body = {"required": True, "content": {"multipart/form-data": {"schema": schema}}}
    answer = _json(response) | {
        kind: {} for kind in ("text/plain", "text/vtt", *(["text/event-stream"] if streams else []))
    }
    return {"openapi_extra": {"requestBody": body}, "responses": responses("The answer.", answer)}


def responses(
    description: str, content: dict[str, Any], error: type[BaseModel] = ErrorResponse
) -> dict[int | str, Any]:
    """Responses of a route: ``content`` by media type, or any of the errors."""
    listed: dict[int | str, Any] = {200: {"description": description, "content": content}}
    for status, text in ERRORS.items():
        listed[status] = {"description": text, "content": _json(error)}
    return listed


def _json(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": REF.format(model=model.__name__)}}}


def install(app: FastAPI) -> None:
    """Make ``app.openapi()`` describe every body and every error."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title=app.title, version=__version__, routes=app.routes, description=app.description)
            models: list[type[BaseModel]] = [*_documented.values(), ErrorResponse]
            _, schemas = models_json_schema([(model, "validation") for model in models], ref_template=REF)
            made.setdefault("components", {}).setdefault("schemas", {}).update(schemas["$defs"])
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]
