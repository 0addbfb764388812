"""The two routes, compatible with OpenAI's API."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.responses import PlainTextResponse, Response

from outrider.errors import InvalidRequestError
from outrider_multimodal.audio_api.form import Form, read_form
from outrider_multimodal.audio_api.run import Transcription
from outrider_multimodal.audio_api.schema import TranscriptionRequest, TranscriptionResponse, TranslationRequest
from outrider_multimodal.speech import Segment, Transcript, TranscriptionOptions
from outrider_multimodal.transcriber import hearing
from outrider_server.dialect import Dialect
from outrider_server.http.context import by_deadline, deadline_of, tenant_of, unless_disconnected
from outrider_server.http.errors import invalid, json_response
from outrider_server.http.openapi import documented_form
from outrider_server.http.request_body import refusal
from outrider_server.http.stream import OPENAI_EVENTS, Chunk, EventStream
from outrider_server.models import Models, service_of

router = APIRouter()

T = TypeVar("T", bound=TranslationRequest)

_LISTS = ("timestamp_granularities",)


@router.post("/v1/audio/transcriptions", **documented_form(TranscriptionRequest, TranscriptionResponse, streams=True))
async def transcriptions(request: Request) -> Response:
    """Transcribe a sound file. With ``stream``, segments are sent as server-sent events."""
    _check_that_some_hear(request)
    form = await read_form(request)
    body = _fields(TranscriptionRequest, form)
    others = [each for each in body.timestamp_granularities or () if each != "segment"]
    if others:
        raise invalid(
            f"timestamp_granularities={others[0][:60]!r} is not supported: use segment", "timestamp_granularities"
        )
    if body.timestamp_granularities and body.response_format != "verbose_json":
        raise invalid("timestamp_granularities need response_format=verbose_json", "timestamp_granularities")
    if body.stream and body.response_format not in ("json", "text"):
        raise invalid(f"response_format={body.response_format} is not streamed: use json", "response_format")
    options = replace(_options(body), language=body.language or None)
    return await _answer(request, form, body, options, stream=bool(body.stream))


@router.post("/v1/audio/translations", **documented_form(TranslationRequest, TranscriptionResponse, streams=False))
async def translations(request: Request) -> Response:
    """Translate the speech of a sound file into English text."""
    _check_that_some_hear(request)
    form = await read_form(request)
    body = _fields(TranslationRequest, form)
    return await _answer(request, form, body, replace(_options(body), task="translate"), stream=False)


def _check_that_some_hear(request: Request) -> None:
    """Refuse before the body is read, unless a model takes sound or may once it is loaded.

    Raises ApiError 503 while the only model is being loaded, and InvalidRequestError if no model takes sound.
    """
    models: Models = request.app.state.models
    if models.pool is not None and any(service.state != "ready" for service in models.services):
        return
    refusals = []
    for llm in [service.engine.llm for service in models.services]:
        try:
            hearing(llm.model, llm.tokenizer.name)
        except InvalidRequestError as error:
            refusals.append(error)
    if len(refusals) == len(models.services):
        raise refusals[0]


def _fields(kind: type[T], form: Form) -> T:
    given: dict[str, Any] = {}
    for name, values in form.fields.items():
        if name not in _LISTS and len(values) > 1:
            raise invalid(f"{name[:60]} comes {len(values)} times: send it once", name[:60])
        given[name] = values if name in _LISTS else values[0]
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise refusal(error.errors(include_url=False, include_context=False)) from None


def _options(body: TranslationRequest) -> TranscriptionOptions:
    options = TranscriptionOptions(prompt=body.prompt or "", seed=body.seed or 0)
    return replace(options, temperatures=(body.temperature,)) if body.temperature else options


async def _answer(
    request: Request, form: Form, body: TranslationRequest, options: TranscriptionOptions, *, stream: bool
) -> Response:
    if "file" not in form.files:
        raise invalid("file is missing: send one with sound", "file", "missing_required_parameter")
    unknown = next((name for name in form.files if name != "file"), None)
    if unknown is not None:
        raise invalid(f"{unknown[:60]} is not a file this server knows: leave it out", unknown[:60])
    name, data = form.files["file"]
    service = await service_of(request, body.model)
    service.check_model(body.model)
    run = Transcription(service, tenant_of(request), deadline_of(request))
    try:
        await by_deadline(request, run.start(data, name[:80] or "file", options))
        if stream:
            return EventStream(_events(run), service.settings, OPENAI_EVENTS, on_end=run.release)
        await unless_disconnected(request, _complete(run))
    except BaseException:
        run.release()
        raise
    assert run.transcript is not None
    return _response(run.transcript, body.response_format)


async def _complete(run: Transcription) -> None:
    async with aclosing(run.segments()) as segments:
        async for _ in segments:
            pass


async def _events(run: Transcription) -> AsyncGenerator[Chunk]:
    async with aclosing(run.segments()) as segments:
        first = True
        async for segment in segments:
            yield {"type": "transcript.text.delta", "delta": _delta(segment, first=first)}
            first = False
    assert run.transcript is not None
    yield {"type": "transcript.text.done", "text": run.transcript.text, "usage": _usage(run.transcript)}


def _delta(segment: Segment, *, first: bool) -> str:
    return segment.text.lstrip() if first else segment.text


def _usage(transcript: Transcript) -> dict[str, Any]:
    return {"type": "duration", "seconds": round(transcript.duration)}


def _response(transcript: Transcript, form: str) -> Response:
    if form == "text":
        return PlainTextResponse(transcript.text + "\n")
    if form == "srt":
        return PlainTextResponse(transcript.srt())
    if form == "vtt":
        return PlainTextResponse(transcript.vtt(), media_type="text/vtt")
    whole = transcript.as_dict() if form == "verbose_json" else {"text": transcript.text}
    return json_response(whole | {"usage": _usage(transcript)})


dialect = Dialect((router,), body_limits=lambda settings: {"/v1/audio/": settings.limits.max_audio_bytes})
