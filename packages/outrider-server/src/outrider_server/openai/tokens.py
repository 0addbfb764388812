"""``/tokenize`` and ``/detokenize``, and the fields of answers that describe single tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from outrider.engine.request import Request as EngineRequest
from outrider.engine.request import StepOutput
from outrider.tokenizer.tokenizer import Tokenizer
from outrider.verify.draft import DraftReport
from outrider_server.http.errors import invalid, json_response
from outrider_server.http.long_json import to_long_json
from outrider_server.http.openapi import documented
from outrider_server.http.request_body import json_body
from outrider_server.models import service_of
from outrider_server.openai.conversation import encode_messages, reading_lane
from outrider_server.openai.schema.base import SamplingRequest
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
    run = reading_lane(service, body.messages)
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

    return await service.off_loop.run(decode)


def token_fields(
    tokenizer: Tokenizer, body: SamplingRequest, request: EngineRequest, steps: Sequence[StepOutput], *, opening: bool
) -> dict[str, Any]:
    """The fields of a choice that describe its tokens, if asked for: their ids, and where each came from."""
    fields: dict[str, Any] = {}
    if request.score is not None and math.isfinite(request.score):
        fields["score"] = request.score
    if body.return_token_ids:
        fields["token_ids"] = [step.token_id for step in steps]
        if opening:
            fields["prompt_token_ids"] = list(request.prompt)
    if body.token_details:
        fields["token_details"] = [
            {"id": step.token_id, "text": step.text, "origin": step.origin, "source": step.source} for step in steps
        ]
    if body.draft_details:
        drafts = [step.draft for step in steps if step.draft is not None]
        fields["draft_details"] = [_draft_fields(tokenizer, draft) for draft in drafts]
    return fields


def _draft_fields(tokenizer: Tokenizer, draft: DraftReport) -> dict[str, Any]:
    """One step's draft as JSON; scores, where the sources gave any, are their guesses at each node's chance."""
    return {
        "tokens": list(draft.tokens),
        "texts": [tokenizer.token_text(token) for token in draft.tokens],
        "parents": list(draft.parents),
        "sources": list(draft.sources),
        "scores": None if draft.scores is None else [round(score, 4) for score in draft.scores],
        "accepted": list(draft.path),
        "budget": draft.budget,
        "proposed": draft.proposed,
    }
