"""``/tokenize`` and ``/detokenize``, and the fields of answers that describe single tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from outrider.engine.request import Request as EngineRequest
from outrider.engine.request import StepOutput
from outrider.server.http.errors import invalid, json_response
from outrider.server.http.openapi import documented
from outrider.server.http.request_body import json_body
from outrider.server.openai.conversation import encode_messages
from outrider.server.openai.schema.base import SamplingRequest
from outrider.server.openai.schema.tokens import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from outrider.server.service import Service
from outrider.tokenizer.tokenizer import Tokenizer

router = APIRouter()


@router.post("/tokenize", **documented(TokenizeRequest, TokenizeResponse))
async def tokenize(request: Request, body: Annotated[TokenizeRequest, Depends(json_body(TokenizeRequest))]) -> Response:
    """Text or a conversation as token ids. Takes vLLM's field names and llama.cpp's."""
    service: Service = request.app.state.service
    service.check_model(body.model)
    if sum(given is not None for given in (body.prompt, body.content, body.messages)) != 1:
        raise invalid("give one of prompt, content and messages", "prompt")
    if body.parse_special is False:
        raise invalid("parse_special=false is not supported: special tokens are always read as such", "parse_special")
    tokenizer = service.tokenizer
    ids = await service.run_in_thread(lambda: _ids(tokenizer, body))
    pieces = [tokenizer.token_text(i) for i in ids]
    result: dict[str, Any] = {"tokens": ids, "count": len(ids), "max_model_len": service.max_seq_len}
    if body.with_pieces:
        result["tokens"] = [{"id": i, "piece": _piece(tokenizer, i)} for i in ids]
    if body.return_token_strs:
        result["token_strs"] = pieces
    return json_response(result)


def _ids(tokenizer: Tokenizer, body: TokenizeRequest) -> list[int]:
    if body.messages is not None:
        return encode_messages(tokenizer, body)
    if body.prompt is not None:
        return tokenizer.encode(body.prompt, add_special_tokens=body.add_special_tokens is not False)
    return tokenizer.encode(body.content or "", add_special_tokens=bool(body.add_special))


def _piece(tokenizer: Tokenizer, token_id: int) -> str | list[int]:
    """A token's text, or its bytes where they are not whole characters, as llama.cpp has it."""
    data = tokenizer.token_bytes(token_id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


@router.post("/detokenize", **documented(DetokenizeRequest, DetokenizeResponse))
async def detokenize(
    request: Request, body: Annotated[DetokenizeRequest, Depends(json_body(DetokenizeRequest))]
) -> Response:
    """Token ids as text, under vLLM's name and under llama.cpp's."""
    service: Service = request.app.state.service
    service.check_model(body.model)
    size = service.tokenizer.vocab_size
    for token in body.tokens:
        if token >= size:
            raise invalid(f"tokens names {token}, but the vocabulary ends at {size - 1}", "tokens")
    tokenizer = service.tokenizer
    text = await service.run_in_thread(lambda: tokenizer.decode(body.tokens, skip_special_tokens=False))
    return json_response({"prompt": text, "content": text})


def token_fields(
    tokenizer: Tokenizer, body: SamplingRequest, request: EngineRequest, steps: Sequence[StepOutput], *, opening: bool
) -> dict[str, Any]:
    """The fields of a choice that describe its tokens, if asked for: their ids, and where each came from."""
    fields: dict[str, Any] = {}
    if body.return_token_ids:
        fields["token_ids"] = [step.token_id for step in steps]
        if opening:
            fields["prompt_token_ids"] = list(request.prompt)
    if body.token_details:
        fields["token_details"] = [
            {"id": step.token_id, "text": step.text, "origin": step.origin, "source": step.source} for step in steps
        ]
    return fields
