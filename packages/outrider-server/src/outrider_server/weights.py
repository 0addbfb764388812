"""``/update_weights_from_disk``: a trainer replaces the model's weights, with SGLang's route and names.

The route is there only if the operator sets ``OUTRIDER_WEIGHTS_KEY``: whoever has that key decides what is served.
"""

from __future__ import annotations

import hmac
import os
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from outrider.errors import ConfigError, ModelFormatError, ModelNotFoundError
from outrider_server.http.errors import ApiError, invalid, json_response
from outrider_server.http.guards import given_key
from outrider_server.http.openapi import documented
from outrider_server.http.request_body import json_body
from outrider_server.models import service_of
from outrider_server.openai.schema.strict import StrictModel

__all__ = ["key", "router"]

router = APIRouter()
_VARIABLE = "OUTRIDER_WEIGHTS_KEY"


def key() -> str:
    """The key that replaces weights; empty: nobody can."""
    return os.environ.get(_VARIABLE, "").strip()


class UpdateWeightsRequest(StrictModel):
    model: str | None = Field(None, max_length=256)
    model_path: str = Field(max_length=4096, description="A safetensors file, or a folder of them, on the server.")
    abort_all_requests: bool = Field(False, description="End requests that run, rather than wait for them.")
    keep_drafts: bool = Field(False, description="Keep what drafts were learned from earlier texts.")


class UpdateWeightsResponse(BaseModel):
    success: bool
    message: str
    system_fingerprint: str


@router.post("/update_weights_from_disk", **documented(UpdateWeightsRequest, UpdateWeightsResponse))
async def update_weights(
    request: Request, body: Annotated[UpdateWeightsRequest, Depends(json_body(UpdateWeightsRequest))]
) -> Response:
    """Replace the model's weights in place. Needs the key of ``OUTRIDER_WEIGHTS_KEY``, as a bearer token."""
    given = given_key(dict(request.scope["headers"]))
    if not hmac.compare_digest(given, key().encode()):
        raise ApiError(401, "the key that replaces weights is missing or wrong", code="invalid_api_key")
    service = await service_of(request, body.model)
    running: Any = "abort" if body.abort_all_requests else "wait"
    try:  # to the end, whether or not the client waits for it
        await service.update_weights(body.model_path, running=running, keep_drafts=body.keep_drafts)
    except (ConfigError, ModelFormatError, ModelNotFoundError) as error:
        raise invalid(str(error), "model_path") from None
    answer = {"success": True, "message": "weights replaced", "system_fingerprint": service.fingerprint}
    return json_response(answer)
