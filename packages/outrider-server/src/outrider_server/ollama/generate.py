"""``/api/chat`` and ``/api/generate``."""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from outrider_server.dialect import Dialect
from outrider_server.generation import respond
from outrider_server.http.context import tenant_of
from outrider_server.http.errors import invalid, json_response
from outrider_server.http.openapi import documented
from outrider_server.http.request_body import json_body
from outrider_server.models import Models
from outrider_server.ollama import info, library
from outrider_server.ollama.answers import LINES, OllamaResponseBuilder, now, ollama_error
from outrider_server.ollama.keep_alive import named_service, unload
from outrider_server.ollama.options import chat_request, model_name
from outrider_server.ollama.schema import (
    OllamaChatRequest,
    OllamaChatResponse,
    OllamaErrorResponse,
    OllamaGenerateRequest,
    OllamaGenerateResponse,
    OllamaMessage,
    OllamaRequest,
    OllamaTool,
)
from outrider_server.openai.chat import start_chat
from outrider_server.openai.schema import chat

router = APIRouter()

_SHAPES: dict[str, Any] = {"stream": LINES.media_type, "error": OllamaErrorResponse}


@router.post("/api/chat", **documented(OllamaChatRequest, OllamaChatResponse, **_SHAPES))
async def ollama_chat(
    request: Request, body: Annotated[OllamaChatRequest, Depends(json_body(OllamaChatRequest, untyped=True))]
) -> Response:
    """Answer a conversation, in Ollama's words: as lines of JSON, unless ``stream`` is false."""
    if not body.messages:
        return await _loaded(request, body, {"message": {"role": "assistant", "content": ""}})
    service = await named_service(request, body.model, body.keep_alive)

    async def start() -> OllamaResponseBuilder:
        own = await service.executors.run_if_large(
            lambda: chat_request(service, body, _messages(body.messages or []), tools=_tools(body.tools))
        )
        return await start_chat(service, own, tenant_of(request), OllamaResponseBuilder)

    return await respond(request, start(), stream=body.stream is not False, form=LINES)


@router.post(
    "/api/generate",
    **documented(OllamaGenerateRequest, OllamaGenerateResponse, **_SHAPES),
)
async def ollama_generate(
    request: Request, body: Annotated[OllamaGenerateRequest, Depends(json_body(OllamaGenerateRequest, untyped=True))]
) -> Response:
    """Answer a prompt, in Ollama's words: as lines of JSON, unless ``stream`` is false."""
    _check(body)
    if not body.prompt:
        return await _loaded(request, body, {"response": ""})
    service = await named_service(request, body.model, body.keep_alive)
    prompt, tenant = body.prompt, tenant_of(request)

    async def start() -> OllamaResponseBuilder:
        turns = [("system", body.system), ("user", prompt)]
        messages = [chat.Message.model_construct(role=role, content=text) for role, text in turns if text is not None]
        own = await service.executors.run_if_large(lambda: chat_request(service, body, messages))
        make = partial(OllamaResponseBuilder, chat=False)
        return await start_chat(service, own, tenant, make, raw=prompt if body.raw else None)

    return await respond(request, start(), stream=body.stream is not False, form=LINES)


def _check(body: OllamaGenerateRequest) -> None:
    for name in ("suffix", "template", "context", "images"):
        if getattr(body, name):
            raise invalid(f"{name} is not supported: leave it out", name, "unsupported")
    if body.raw and body.system:
        raise invalid("raw leaves the prompt as it is, without a system message: leave one out", "system")


async def _loaded(request: Request, body: OllamaRequest, empty: dict[str, Any]) -> Response:
    """The answer to a request for the model alone: to load it or, with ``keep_alive`` 0, to unload it.

    A single model is loaded already, and stays so.
    """
    models: Models = request.app.state.models
    reason = "unload" if body.keep_alive in (0, "0") else "load"
    if reason == "unload":
        service = unload(request, body.model)
    else:
        service = await named_service(request, body.model, body.keep_alive)
    name = model_name(service, body.model)
    if models.pool is None:
        _ = service.engine  # or say that it is not there yet
    return json_response({"model": name, "created_at": now()} | empty | {"done": True, "done_reason": reason})


def _messages(given: list[OllamaMessage]) -> list[chat.Message]:
    messages = []
    for i, message in enumerate(given):
        if message.images:
            raise invalid("images are not supported here: send them to /v1/chat/completions", f"messages[{i}].images")
        calls = [
            chat.ToolCall(
                id=call.id or f"call-{i}-{place}",
                function=chat.FunctionCall(
                    name=call.function.name, arguments=json.dumps(call.function.arguments, ensure_ascii=False)
                ),
            )
            for place, call in enumerate(message.tool_calls or ())
        ]
        own: dict[str, Any] = {"role": message.role, "content": message.content, "tool_calls": calls or None}
        own |= {"name": message.tool_name, "tool_call_id": message.tool_call_id, "reasoning_content": message.thinking}
        messages.append(chat.Message.model_construct(**own))
    return messages


def _tools(given: list[OllamaTool] | None) -> list[chat.Tool] | None:
    tools = [
        chat.Tool.model_construct(
            type="function", function=chat.FunctionDefinition.model_construct(**tool.function.model_dump())
        )
        for tool in given or ()
    ]
    return tools or None


dialect = Dialect((router, info.router, library.router), {"/api/": ollama_error})
