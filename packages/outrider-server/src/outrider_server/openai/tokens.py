"""``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from outrider.tokenizer.tokenizer import Tokenizer
from outrider_server.http.errors import invalid, json_response, to_long_json
from outrider_server.http.openapi import documented
from outrider_server.http.request_body import json_body
from outrider_server.models import service_of
from outrider_server.openai.chat import encode_messages, reading_executor
from outrider_server.openai.schema.tokens import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from outrider_server.service import Service

router = APIRouter()

MAX_TEXT = 1 << 20  # characters to be tokenized at once, which takes about a second


@router.post("/tokenize", **documented(TokenizeRequest, TokenizeResponse))
async def tokenize(
    request: Request, body: Annotated[TokenizeRequest, Depends(json_body(TokenizeRequest, untyped=True))]
) -> Response:
    """Text or a conversation as token ids. Takes vLLM's field names and llama.cpp's."""
    service = await service_of(request, body.model)
    service.check_model(body.model)
    if sum(given is not None for given in (body.prompt, body.content, body.messages)) != 1:
        raise invalid("give one of prompt, content and messages", "prompt")
    run = reading_executor(service, body.messages)
    return Response(await run(lambda: _tokenized(service, body)), media_type="application/json")


def _tokenized(service: Service, body: TokenizeRequest) -> bytes:
    tokenizer, ids = service.tokenizer, _ids(service, body)
    result: dict[str, Any] = {"tokens": ids, "count": len(ids), "max_model_len": service.max_seq_len}
    if body.with_pieces:
        result["tokens"] = [{"id": i, "piece": _piece(tokenizer, i)} for i in ids]
    if body.return_token_strs:
        result["token_strs"] = [tokenizer.token_text(i) for i in ids]
    return to_long_json(result)


def _ids(service: Service, body: TokenizeRequest) -> list[int]:
    if body.messages is not None:
        return encode_messages(service, body)
    framed = bool(body.add_special) if body.prompt is None else body.add_special_tokens is not False
    text, param = (body.content or "", "content") if body.prompt is None else (body.prompt, "prompt")
    if len(text) > MAX_TEXT:
        raise invalid(f"{param} has {len(text)} characters, and at most {MAX_TEXT} are taken: send parts", param)
    encode = service.tokenizer.encode_plain if body.parse_special is False else service.tokenizer.encode
    return encode(text, add_special_tokens=framed)


def _piece(tokenizer: Tokenizer, token_id: int) -> str | list[int]:
    """A token's text, or its bytes where they are not whole characters, as llama.cpp has it."""
    data = tokenizer.token_bytes(token_id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


@router.post("/detokenize", **documented(DetokenizeRequest, DetokenizeResponse))
async def detokenize(
    request: Request, body: Annotated[DetokenizeRequest, Depends(json_body(DetokenizeRequest, untyped=True))]
) -> Response:
    """Token ids as text, under vLLM's name and under llama.cpp's."""
    service = await service_of(request, body.model)
    service.check_model(body.model)
    tokenizer = service.tokenizer

    def decode() -> Response:
        size, most = tokenizer.vocab_size, max(body.tokens, default=0)
        if most >= size:
            raise invalid(f"tokens names {most}, but the vocabulary ends at {size - 1}", "tokens")
        text = tokenizer.decode(body.tokens, skip_special_tokens=False)
        return json_response({"prompt": text, "content": text})

    return await service.executors.run(decode)
