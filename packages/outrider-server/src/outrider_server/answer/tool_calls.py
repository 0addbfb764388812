"""Tool calls in a model's output, in the notations of several families."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_NAMED = re.compile(r"\s*([A-Za-z0-9_.-]{1,64})\s*(?:\[CALL_ID\][A-Za-z0-9]*)?(?:\[ARGS\])?\s*(?=\{)")
_FUNCTION = re.compile(r"<function=([^>\n]{1,64})>(.*?)(?:</function>|$)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]{1,256})>\n?(.*?)\n?(?:</parameter>|(?=<parameter=)|$)", re.DOTALL)


@dataclass(frozen=True)
class ParsedCall:
    name: str
    arguments: str  # JSON

    @property
    def as_object(self) -> dict[str, Any]:
        """The arguments as an object; any other value is wrapped in ``arguments``."""
        try:
            value = json.loads(self.arguments)
        except ValueError:
            value = self.arguments
        return value if isinstance(value, dict) else {"arguments": value}


def parse_calls(text: str, schemas: Mapping[str, Any], *, strict: bool = False) -> list[ParsedCall] | None:
    """The calls that a text is, or None if it is something else.

    ::

        {"name": "f", "arguments": {}}       [{...}, {...}]       {...}; {...}      Hermes, Mistral, Llama 3
        f[ARGS]{"a": 1}                      f{"a": 1}                              Mistral, since version 11
        <function=f><parameter=a>1</parameter></function>                           Qwen 3 Coder

    Args:
        schemas: of the arguments, by name of the tool; they say which values of XML are no text.
        strict: JSON must name its arguments: ``{"name": "Ann"}`` alone is an answer, and no call.
    """
    text = text.strip()
    if text.startswith("<function="):
        return [_from_xml(name, inner, schemas) for name, inner in _FUNCTION.findall(text)] or None
    if text[:1] in ("{", "["):
        return _from_json(text, strict)
    return _from_names(text)


def _from_json(text: str, strict: bool) -> list[ParsedCall] | None:
    entries: list[Any] = []
    rest = text
    while rest:
        read = _read_value(rest)
        if read is None:
            return None
        value, rest = read
        entries += value if isinstance(value, list) else [value]
        rest = rest.lstrip(" \n;,")
    calls = [_call(entry, strict) for entry in entries]
    return [call for call in calls if call is not None] if calls and None not in calls else None


def _call(entry: Any, strict: bool) -> ParsedCall | None:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        return None
    if strict and not {"arguments", "parameters"} & set(entry):
        return None
    arguments = entry.get("arguments", entry.get("parameters", {}))
    if not isinstance(arguments, dict | str):
        return None
    return ParsedCall(entry["name"], arguments if isinstance(arguments, str) else _to_json(arguments))


def _from_names(text: str) -> list[ParsedCall] | None:
    """Names before their arguments, each perhaps after a marker of its own, which the caller has left in."""
    calls: list[ParsedCall] = []
    rest = text
    while rest:
        named = _NAMED.match(rest)
        read = None if named is None else _read_value(rest[named.end() :])
        if named is None or read is None or not isinstance(read[0], dict):
            return None
        calls.append(ParsedCall(named[1], _to_json(read[0])))
        rest = read[1].lstrip().removeprefix("[TOOL_CALLS]").lstrip()
    return calls or None


def _from_xml(name: str, inner: str, schemas: Mapping[str, Any]) -> ParsedCall:
    schema = schemas.get(name)
    known = schema.get("properties") if isinstance(schema, Mapping) else None
    properties = known if isinstance(known, Mapping) else {}
    values = {key: _value(text, properties.get(key)) for key, text in _PARAMETER.findall(inner)}
    return ParsedCall(name, _to_json(values))


def _value(text: str, schema: Any) -> Any:
    """A parameter's text, or the JSON value that its schema asks for."""
    if not isinstance(schema, Mapping) or schema.get("type") in (None, "string"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _read_value(text: str) -> tuple[Any, str] | None:
    """The JSON value at the beginning of a text, and the rest of the text."""
    try:
        value, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return value, text[end:]


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def argument_schemas(tools: Sequence[Any]) -> dict[str, Any]:
    """The schema of each tool's arguments, of tools as OpenAI writes them."""
    return {tool.function.name: tool.function.parameters or {} for tool in tools}
