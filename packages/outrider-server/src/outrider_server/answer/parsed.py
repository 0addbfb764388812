"""A tool call as it was read, and values that its parameters' schemas say how to read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["ParsedCall", "argument_schemas", "call_of", "properties_of", "read_value", "takes_text", "to_json", "typed"]


@dataclass(frozen=True)
class ParsedCall:
    name: str
    arguments: str  # JSON
    id: str | None = None
    """The id that the model wrote; None: it wrote none."""

    @property
    def as_object(self) -> dict[str, Any]:
        """The arguments as an object; any other value is wrapped in ``arguments``."""
        try:
            value = json.loads(self.arguments)
        except ValueError:
            value = self.arguments
        return value if isinstance(value, dict) else {"arguments": value}


def call_of(name: str, arguments: Any, call_id: str | None = None) -> ParsedCall:
    """A call with arguments that are a value of JSON."""
    return ParsedCall(name, to_json(arguments), call_id)


def to_json(value: Any) -> str:
    """``value`` as JSON."""
    return json.dumps(value, ensure_ascii=False)


def read_value(text: str) -> tuple[Any, str] | None:
    """The JSON value at the beginning of a text, and the rest of the text."""
    try:
        value, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return value, text[end:]


def properties_of(schemas: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The schemas of the parameters of the tool ``name``; empty if they are not known."""
    schema = schemas.get(name)
    known = schema.get("properties") if isinstance(schema, Mapping) else None
    return known if isinstance(known, Mapping) else {}


def typed(text: str, schema: Any) -> Any:
    """A parameter's text, or the JSON value that its schema asks for."""
    if takes_text(schema):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def takes_text(schema: Any) -> bool:
    """Whether a text fits a parameter's schema; true of one that says nothing."""
    if not isinstance(schema, Mapping):
        return True
    kind, options = schema.get("type"), schema.get("anyOf", schema.get("oneOf"))
    if kind is not None:
        return "string" in kind if isinstance(kind, list | str) else True
    if isinstance(options, list) and options:
        return any(map(takes_text, options))
    values = schema.get("enum")
    return not isinstance(values, list) or any(isinstance(value, str) for value in values)


def argument_schemas(tools: Sequence[Any]) -> dict[str, Any]:
    """The schema of each tool's arguments, of tools as OpenAI writes them."""
    return {tool.function.name: tool.function.parameters or {} for tool in tools}
