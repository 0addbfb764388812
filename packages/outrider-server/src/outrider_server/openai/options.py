"""A request's fields as the engine's own: ``SamplingParams``, ``StructuredOutput`` and ``SpeculationParams``."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from outrider.config import SamplingParams, SpeculationParams
from outrider.config.adapters import LoRARequest
from outrider.config.options import draft_of_method
from outrider.config.structured import KINDS, StructuredOutput
from outrider.engine.request import ALONE
from outrider.errors import ConfigError, InvalidRequestError
from outrider_server.http.errors import invalid
from outrider_server.openai.schema.base import GenerationRequest, PredictedOutput, SamplingRequest
from outrider_server.openai.schema.chat import Tool
from outrider_server.openai.schema.speculation import SpeculationOptions
from outrider_server.service import Service

_SAME_NAME = (
    "seed",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "stop",
    "stop_token_ids",
    "allowed_token_ids",
    "min_tokens",
    "length_penalty",
    "early_stopping",
    "ignore_eos",
    "skip_special_tokens",
    "logprobs_mode",
)
_VLLM = {"json": "json_schema"} | {kind: kind for kind in KINDS}
"""Keys of ``structured_outputs``, and the names that they have here."""


def sampling(
    body: SamplingRequest,
    *,
    max_tokens: int,
    n: int,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
    structured: StructuredOutput | None = None,
) -> SamplingParams:
    """The request's sampling options; temperature is 1 unless given, as with OpenAI.

    Raises InvalidRequestError for values that the schema cannot check.
    """
    given = {name: value for name in _SAME_NAME if (value := getattr(body, name)) is not None}
    usual = _beams(body, n) if body.use_beam_search else {"temperature": 1.0}
    return SamplingParams(
        **(usual | given),
        structured=structured,
        max_tokens=max_tokens,
        n=n,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        logit_bias=_bias(body.logit_bias or {}),
    )


def _beams(body: SamplingRequest, n: int) -> dict[str, Any]:
    """Beam search, which vLLM asks for with as many beams as outputs."""
    return {"beam_width": body.beam_width or max(n, getattr(body, "best_of", None) or 1)}


def _bias(given: dict[str, float]) -> dict[int, float]:
    for key in given:
        if not (key.isascii() and key.isdigit() and len(key) < 10 and key == str(int(key))):  # one spelling of each
            raise invalid(f"logit_bias={key[:40]!r} is not valid: keys are token ids", "logit_bias")
    return {int(key): value for key, value in given.items()}


def speculation(body: GenerationRequest, default: SpeculationParams) -> SpeculationParams:
    """The server's way to draft with the request's changes; a prediction is drafted from unless told otherwise."""
    chosen = default
    requested = body.speculation
    if requested == "off":
        chosen = replace(default, draft="none")
    elif isinstance(requested, SpeculationOptions):
        chosen = _changed(default, requested)
    if body.prediction is not None:
        chosen = _with_prediction(chosen, body.prediction, requested)
    return chosen


def _changed(default: SpeculationParams, requested: SpeculationOptions) -> SpeculationParams:
    given = requested.model_dump(exclude_unset=True)  # null, where it was sent, is a value of its own
    for name in ("draft", "method", "spec_length", "num_speculative_tokens", "verifier"):
        if given.get(name) is None:
            given.pop(name, None)
    length = given.pop("num_speculative_tokens", None)
    if length is not None and given.setdefault("spec_length", length) != length:
        raise invalid("spec_length and num_speculative_tokens differ: give one", "speculation.spec_length")
    method = given.pop("method", None)
    if method is not None:
        source = draft_of_method(method)
        if given.setdefault("draft", source) != source:
            raise invalid(f"method={method!r} is draft={source!r}, and another is given: give one", "speculation.draft")
    try:
        return replace(default, **given)
    except ConfigError as error:
        name = str(error).partition("=")[0]
        raise invalid(str(error), f"speculation.{name}" if name in given else "speculation") from None


def _with_prediction(
    chosen: SpeculationParams, prediction: PredictedOutput, requested: SpeculationOptions | str | None
) -> SpeculationParams:
    """Draft from the text the caller expects. It changes the speed of the answer, never its text."""
    content = prediction.content
    text = content if isinstance(content, str) else "".join(part.text for part in content)
    named = requested == "off" or (
        isinstance(requested, SpeculationOptions) and (requested.draft, requested.method) != (None, None)
    )
    return replace(chosen, prediction=text, draft=chosen.draft if named else "prediction")


def scheduling(service: Service, body: GenerationRequest, tenant: str, *, alone: bool = False) -> dict[str, Any]:
    """When the request runs, and with whom it shares: ``alone`` with nobody, itself included.

    Raises ApiError if it sets a priority, and callers here may not.
    """
    check_priority(service, body.priority)
    domain = ALONE + secrets.token_hex(16) if alone else service.callers.domain(tenant, body.cache_salt or "")
    adapter = adapter_of(service, body.model)
    return {"priority": body.priority or 0, "cache_salt": domain, "tenant": tenant, "lora_request": adapter}


def adapter_of(service: Service, model: str | None) -> LoRARequest | None:
    """The adapter that a request names as its model, if it is one."""
    return LoRARequest(model) if model is not None and model in service.engine.llm.adapters.names else None


def check_priority(service: Service, priority: int | None) -> None:
    """Raises ApiError for a priority where callers may not set one."""
    if priority and service.settings.scheduling_policy != "priority":
        message = f"priority={priority} is not for callers to set here: leave it out"
        raise invalid(f"{message}, or start the server with --scheduling-policy priority", "priority", "unsupported")


def wants_obfuscation(body: SamplingRequest) -> bool:
    """Whether the client asked for padded events (``include_obfuscation``)."""
    return bool(body.stream_options and body.stream_options.include_obfuscation)


def check_stream_options(body: SamplingRequest) -> None:
    wanted = body.stream_options
    if wanted is not None and not body.stream:
        raise invalid("stream_options are for streams: set stream, or leave them out", "stream_options")
    if wanted is not None and wanted.continuous_usage_stats and not wanted.include_usage:
        raise invalid("continuous_usage_stats needs include_usage: set both", "stream_options")


def structured_output(body: SamplingRequest, response_format: Mapping[str, Any] | None) -> StructuredOutput | None:
    """The form that the output must match; None: any text. Raises ApiError 400 for fields that cannot be used."""
    ways = {
        "response_format": None if response_format is None else _from_format(response_format),
        "structured_outputs": None if body.structured_outputs is None else _from_vllm(body.structured_outputs),
        "grammar": _parse({"grammar": body.grammar}, "grammar") if body.grammar else None,
        "json_schema": None if body.json_schema is None else _parse({"json_schema": body.json_schema}, "json_schema"),
    }
    given = [name for name, value in ways.items() if value is not None]
    if len(given) > 1:
        raise invalid(f"{given[0]} and {given[1]} both say what to write: give one", given[1])
    return ways[given[0]] if given else None


def _from_vllm(given: Mapping[str, Any]) -> StructuredOutput:
    for name in given:
        if name not in _VLLM:
            known = ", ".join(_VLLM)
            raise invalid(f"structured_outputs.{name[:40]} is unknown: use one of {known}", "structured_outputs")
    return _parse({_VLLM[name]: value for name, value in given.items() if value is not None}, "structured_outputs")


def _from_format(given: Mapping[str, Any]) -> StructuredOutput | None:
    kind = given.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        schema = given.get("schema")  # llama.cpp's way to give one
        return _parse({"json_object": True} if schema is None else {"json_schema": schema}, "response_format")
    if kind != "json_schema":
        raise invalid("response_format.type is text, json_object or json_schema", "response_format.type")
    inner = given.get("json_schema")
    if not isinstance(inner, Mapping) or inner.get("schema") is None:
        raise invalid("response_format.json_schema has no schema: give one", "response_format.json_schema")
    return _parse({"json_schema": inner["schema"]}, "response_format")


def _parse(given: dict[str, Any], param: str) -> StructuredOutput:
    try:
        return StructuredOutput(**given)
    except InvalidRequestError as error:
        raise invalid(str(error), param) from None


def forced_tool_call(tools: Sequence[Tool], name: str | None) -> StructuredOutput:
    """One call of the tool of that name, or of any, with arguments that fit its parameters.

    It is bare JSON, ``{"name": ..., "arguments": {...}}``, without the markers of the chat template.
    """
    schemas = [_call_schema(tool) for tool in tools if name in (None, tool.function.name)]
    return _parse({"json_schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}, "tools")


def _call_schema(tool: Tool) -> dict[str, Any]:
    arguments = tool.function.parameters or {"type": "object"}
    return {
        "type": "object",
        "properties": {"name": {"const": tool.function.name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


@contextmanager
def field_names(body: SamplingRequest) -> Iterator[None]:
    """Give errors of compiling a grammar the name of the field that the client used."""
    try:
        yield
    except InvalidRequestError as error:
        if error.param not in {"structured", *KINDS}:
            raise
        given = (name for name in ("structured_outputs", "grammar", "json_schema") if getattr(body, name))
        raise invalid(str(error), next(given, "response_format")) from None
