"""Structured output in the fields of OpenAI, vLLM and llama.cpp, and for a tool that must be called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from outrider.config.structured import KINDS, StructuredOutput
from outrider.errors import InvalidRequestError
from outrider_server.http.errors import invalid
from outrider_server.openai.schema.base import SamplingRequest
from outrider_server.openai.schema.chat import Tool

_VLLM = {"json": "json_schema"} | {kind: kind for kind in KINDS}
"""ApiKeyMiddleware of ``structured_outputs``, and what they are called here."""


def structured_output(body: SamplingRequest, response_format: Mapping[str, Any] | None) -> StructuredOutput | None:
    """What the output must match; None: anything. Raises ApiError 400 if the request's fields cannot be used."""
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

    It is bare JSON, ``{"name": ..., "arguments": {...}}``, whatever markers the chat template uses.
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
