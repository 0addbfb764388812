"""``/props``, ``/slots``, ``/apply-template`` and the count of a conversation's tokens, as llama.cpp has them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from outrider import __version__
from outrider_server.http.context import check_sees_all
from outrider_server.http.errors import ApiError, json_response
from outrider_server.http.openapi import documented, responses
from outrider_server.http.request_body import json_body
from outrider_server.llama_cpp import options
from outrider_server.llama_cpp.schema import LlamaCppRequest, TemplateRequest, TemplateResponse
from outrider_server.models import Models, service_of
from outrider_server.openai.chat import encode_messages, reading_executor, render_messages
from outrider_server.openai.schema.chat import ChatRequest

router = APIRouter()
_JSON = responses("The answer.", {"application/json": {"schema": {}}})


@router.get("/props", responses=_JSON)
async def props(request: Request) -> Response:
    """The server's settings. ``model_path`` is the name that clients know: paths of files are not disclosed.

    A GET has no effects, as any web page may have it sent: of several models, one that is not loaded stays so.
    """
    models: Models = request.app.state.models
    service = models.if_loaded(request.query_params.get("model"))
    if service is None:
        message = "this model is not loaded, and asking for its properties does not load it: send it a request first"
        raise ApiError(400, message, param="model", code="model_not_loaded")
    llm = service.engine.llm
    tokenizer, most = llm.tokenizer, service.settings.max_tokens
    body = LlamaCppRequest.model_validate({"prompt": ""})
    params = options.sampling(body, tokenizer, most or service.max_seq_len)
    defaults = options.settings(body, params, most, service.max_seq_len)
    special = {
        f"{name}_token": "" if ids is None else tokenizer.decode([ids], skip_special_tokens=False)
        for name, ids in (("bos", tokenizer.bos_token_id), ("eos", next(iter(tokenizer.eos_token_ids), None)))
    }
    settings = {
        "default_generation_settings": {
            "n_ctx": service.max_seq_len,
            "params": defaults | {"seed": -1, "speculative.types": llm.speculation.draft},
        },
        "total_slots": llm.config.max_batch_size,
        "model_alias": service.check_model(None),
        "model_path": service.check_model(None),
        "modalities": {"vision": llm.sees, "audio": False},
        "endpoint_slots": True,
        "endpoint_props": False,
        "endpoint_metrics": True,
        "chat_template": tokenizer.chat_template or "",
        "build_info": f"outrider-{__version__}",
        "is_sleeping": False,
    }
    return json_response(settings | special)


@router.get("/slots", responses=_JSON)
async def slots(request: Request) -> Response:
    """Places of the batch, the busy ones first: a sequence has no place of its own, only a share of the next step.

    Of several models, ``model`` in the query names one; one that is not loaded has no places.
    """
    check_sees_all(request)
    models: Models = request.app.state.models
    service = models.if_loaded(request.query_params.get("model"))
    if service is None:
        return json_response([])
    engine = service.engine.llm.engine
    slots_total, running = service.engine.llm.config.max_batch_size, engine.stats.running if engine.busy else 0
    speculative = service.engine.llm.speculation.draft != "none"
    slots = [
        {"id": i, "n_ctx": service.max_seq_len, "speculative": speculative, "is_processing": i < running}
        for i in range(slots_total)
    ]
    return json_response(slots)


@router.post("/apply-template", **documented(TemplateRequest, TemplateResponse))
async def apply_template(
    request: Request, body: Annotated[TemplateRequest, Depends(json_body(TemplateRequest, untyped=True))]
) -> Response:
    """A conversation as the model's template writes it."""
    service = await service_of(request, body.model)
    service.check_model(body.model)
    rendered = await service.executors.run(lambda: render_messages(service, body))
    return json_response({"prompt": rendered.text})


@router.post("/v1/chat/completions/input_tokens", include_in_schema=False)
@router.post("/chat/completions/input_tokens", include_in_schema=False)
async def input_tokens(
    request: Request, body: Annotated[ChatRequest, Depends(json_body(ChatRequest, untyped=True))]
) -> Response:
    """How many tokens a chat's prompt has, tools included; nothing is generated."""
    service = await service_of(request, body.model)
    service.check_model(body.model)
    with_tools = body.tool_choice != "none"
    run = reading_executor(service, body.messages)
    ids = await run(lambda: encode_messages(service, body, tools=with_tools))
    return json_response({"input_tokens": len(ids)})
