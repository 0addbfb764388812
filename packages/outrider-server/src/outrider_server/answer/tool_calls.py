"""Tool calls in a model's output, in the notations that their first characters tell apart."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from outrider_server.answer.notations import may_be_pythonic, pythonic
from outrider_server.answer.parsed import ParsedCall, call_of, properties_of, read_value, to_json, typed

__all__ = ["may_be_calls", "parse_calls"]

_NAMED = re.compile(r"\s*([A-Za-z0-9_.-]{1,64})\s*(?:\[CALL_ID\]([A-Za-z0-9]*))?(?:\[ARGS\])?\s*(?=\{)")
_FUNCTION = re.compile(r"<function=([^>\n]{1,64})>(.*?)(?:</function>|$)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]{1,256})>\n?(.*?)\n?(?:</parameter>|(?=<parameter=)|$)", re.DOTALL)


def parse_calls(text: str, schemas: Mapping[str, Any], *, strict: bool = False) -> list[ParsedCall] | None:
    """The calls that a text is, or None if it is something else.

    ::

        {"name": "f", "arguments": {}}       [{...}, {...}]       {...}; {...}      Hermes, Mistral, Llama 3
        f[ARGS]{"a": 1}                      f{"a": 1}                              Mistral, since version 11
        <function=f><parameter=a>1</parameter></function>                           Qwen 3 Coder, Nemotron 3, Seed-OSS
        [f(a=1), g()]                                                               LFM2, Llama 4

    Args:
        schemas: of the arguments, by name of the tool; they say which values of XML are no text.
        strict: the text stands behind no marker: JSON must name its arguments (``{"name": "Ann"}`` alone is an
            answer, and no call), and Python's calls must be of known tools.
    """
    text = text.strip()
    if text.startswith("<function="):
        return [_from_xml(name, inner, schemas) for name, inner in _FUNCTION.findall(text)] or None
    if may_be_pythonic(text):
        return pythonic(text, schemas, strict=strict)
    if text[:1] in ("{", "["):
        return _from_json(text, strict)
    return _from_names(text)


def may_be_calls(text: str) -> bool:
    """Whether an answer that begins so may be calls as a whole, without a marker."""
    return text[:1] in ("", "{") or may_be_pythonic(text)


def _from_json(text: str, strict: bool) -> list[ParsedCall] | None:
    entries: list[Any] = []
    rest = text
    while rest:
        read = read_value(rest)
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
    return ParsedCall(entry["name"], arguments if isinstance(arguments, str) else to_json(arguments))


def _from_names(text: str) -> list[ParsedCall] | None:
    """Names before their arguments, each perhaps after a marker of its own, which the caller has left in."""
    calls: list[ParsedCall] = []
    rest = text
    while rest:
        named = _NAMED.match(rest)
        read = None if named is None else read_value(rest[named.end() :])
        if named is None or read is None or not isinstance(read[0], dict):
            return None
        calls.append(call_of(named[1], read[0], named[2] or None))
        rest = read[1].lstrip().removeprefix("[TOOL_CALLS]").lstrip()
    return calls or None


def _from_xml(name: str, inner: str, schemas: Mapping[str, Any]) -> ParsedCall:
    known = properties_of(schemas, name)
    return call_of(name, {key: typed(text, known.get(key)) for key, text in _PARAMETER.findall(inner)})
