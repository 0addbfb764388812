"""Notations of one tool call, or of several, that are of a family's own: each reads a text, or finds it to be none.

::

    glm        f\\n<arg_key>a</arg_key>\\n<arg_value>1</arg_value>                           GLM-4.5 to 4.7
    deepseek   f<｜tool▁sep｜>{"a": 1}        function<｜tool▁sep｜>f\\n```json\\n{"a": 1}\\n```     DeepSeek V3 to V3.1
    invoke     "f"><parameter name="a">1</parameter>                                      MiniMax M2, DeepSeek V3.2
    kimi       functions.f:0<|tool_call_argument_begin|>{"a": 1}                           Kimi K2
    gemma      call:f{a:1,b:<|"|>text<|"|>}                                                Gemma 4
    pythonic   [f(a=1, b='text'), g()]                                                     LFM2, Llama 4
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from outrider_server.answer.parsed import ParsedCall, call_of, properties_of, read_value, typed

__all__ = ["Notation", "deepseek", "gemma", "glm", "invoke", "kimi", "pythonic"]

Notation = Callable[[str, Mapping[str, Any]], list[ParsedCall] | None]
"""From the text between a call's markers, and the tools' schemas by name: the calls, or None."""

_NAME = r"[A-Za-z0-9_.-]{1,64}"
_GLM = re.compile(rf"\s*({_NAME})\s*((?:<arg_key>.*)?)$", re.DOTALL)
_ARGUMENT = re.compile(
    r"<arg_key>\s*(.{1,256}?)\s*</arg_key>\s*<arg_value>(.*?)(?:</arg_value>|(?=<arg_key>)|$)", re.DOTALL
)
_DEEPSEEK = re.compile(rf"\s*(?:function<｜tool▁sep｜>)?({_NAME})(?:<｜tool▁sep｜>|\s*\n)?\s*(?:```json)?\s*(?=\{{)")
_INVOKE = re.compile(rf'\s*"?({_NAME})"?>(.*)$', re.DOTALL)
_PARAMETER = re.compile(
    r'<(｜DSML｜)?parameter name="([^">\n]{1,256})"(?: string="(true|false)")?>(.*?)(?:</(?:｜DSML｜)?parameter>|$)',
    re.DOTALL,
)
_KIMI = re.compile(rf"\s*((?:functions\.)?({_NAME}?)(?::\d+)?)\s*(?:<\|tool_call_argument_begin\|>)?\s*(?=\{{)")
_GEMMA = re.compile(rf"\s*call:({_NAME})(?=\{{)")
_PYTHONIC = re.compile(rf"\[\s*(?:{_NAME}\(|$)")


def glm(text: str, schemas: Mapping[str, Any]) -> list[ParsedCall] | None:
    """A name, then keys and values. A name alone is a call if it is that of a tool."""
    found = _GLM.match(text)
    if found is None or not (found[2] or found[1] in schemas):
        return None
    known = properties_of(schemas, found[1])
    values = {key: typed(value, known.get(key)) for key, value in _ARGUMENT.findall(found[2])}
    return [call_of(found[1], values)]


def deepseek(text: str, _: Mapping[str, Any]) -> list[ParsedCall] | None:
    """A name, a separator and JSON, perhaps in a fence behind the word ``function``."""
    found = _DEEPSEEK.match(text)
    read = None if found is None else read_value(text[found.end() :])
    if found is None or read is None or not isinstance(read[0], dict) or read[1].strip() not in ("", "```"):
        return None
    return [call_of(found[1], read[0])]


def invoke(text: str, schemas: Mapping[str, Any]) -> list[ParsedCall] | None:
    """What follows ``<invoke name=``; a parameter that says that it is no string is JSON."""
    found = _INVOKE.match(text)
    if found is None:
        return None
    known, values = properties_of(schemas, found[1]), {}
    for dsml, key, is_string, value in _PARAMETER.findall(found[2]):
        schema = {"type": "string" if is_string == "true" else "any"} if dsml and is_string else known.get(key)
        values[key] = typed(value, schema)
    return [call_of(found[1], values)]


def kimi(text: str, _: Mapping[str, Any]) -> list[ParsedCall] | None:
    """An id, which holds the name, and JSON."""
    found = _KIMI.match(text)
    read = None if found is None else read_value(text[found.end() :])
    if found is None or read is None or not isinstance(read[0], dict) or not found[2]:
        return None
    return [call_of(found[2], read[0], found[1])]


def pythonic(text: str, schemas: Mapping[str, Any], *, strict: bool = False) -> list[ParsedCall] | None:
    """A list of Python's calls with keywords, whose constants may also be JSON's; ``strict``: of known tools."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        nodes = tree.elts if isinstance(tree, ast.List) else [tree]
        calls = [call_of(ast.unparse(_called(node)), _keywords(node)) for node in nodes]
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    return calls if calls and not (strict and any(call.name not in schemas for call in calls)) else None


def may_be_pythonic(text: str) -> bool:
    """Whether a text begins as a list of calls, as far as it goes."""
    return _PYTHONIC.match(text) is not None or re.fullmatch(rf"\[\s*{_NAME}", text) is not None


def _called(node: ast.expr) -> ast.expr:
    if not isinstance(node, ast.Call) or node.args or not isinstance(node.func, ast.Name | ast.Attribute):
        raise ValueError("no call with keywords")
    return node.func


def _keywords(node: ast.expr) -> dict[str, Any]:
    assert isinstance(node, ast.Call)
    return {keyword.arg: _constant(keyword.value) for keyword in node.keywords if keyword.arg is not None}


_CONSTANTS = {"true": True, "false": False, "null": None}


def _constant(node: ast.expr) -> Any:
    """The value of a literal, by Python's rules. Raises ValueError for anything else."""
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return _CONSTANTS[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_constant(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        keys = [_constant(key) if key is not None else None for key in node.keys]
        if not all(isinstance(key, str) for key in keys):
            raise ValueError("keys are texts")
        return dict(zip(keys, map(_constant, node.values), strict=True))
    value = ast.literal_eval(node)
    if not isinstance(value, str | int | float | bool | None):
        raise ValueError("no value of JSON")
    return value


def gemma(text: str, _: Mapping[str, Any]) -> list[ParsedCall] | None:
    """``call:`` and a name, then an object whose keys are bare and whose strings have quotes of their own."""
    found = _GEMMA.match(text)
    if found is None:
        return None
    try:
        value, rest = _gemma_value(text[found.end() :])
    except (ValueError, RecursionError):
        return None
    return [call_of(found[1], value)] if isinstance(value, dict) and not rest.strip() else None


_QUOTE = '<|"|>'
_KEY = re.compile(r"\s*([^\s:{}\[\],<]{1,256})\s*:")
_SCALAR = re.compile(r"[^,{}\[\]]+")


def _gemma_value(text: str) -> tuple[Any, str]:
    """The value at the beginning of ``text``, and the rest. Raises ValueError if there is none."""
    text = text.lstrip()
    if text.startswith(_QUOTE):
        value, quote, rest = text.removeprefix(_QUOTE).partition(_QUOTE)
        if not quote:
            raise ValueError("a string that does not end")
        return value, rest
    if text[:1] in ("{", "["):
        return _gemma_members(text[1:], is_object=text[0] == "{")
    found = _SCALAR.match(text)
    if found is None:
        raise ValueError("no value")
    return json.loads(found[0]), text[found.end() :]


def _gemma_members(text: str, *, is_object: bool) -> tuple[Any, str]:
    values: dict[str, Any] = {}
    items: list[Any] = []
    close = "}" if is_object else "]"
    text = text.lstrip()
    while not text.startswith(close):
        if is_object:
            key, text = _gemma_key(text)
            values[key], text = _gemma_value(text)
        else:
            value, text = _gemma_value(text)
            items.append(value)
        text = text.lstrip()
        if text.startswith(","):
            text = text[1:].lstrip()
        elif not text.startswith(close):
            raise ValueError("neither a comma nor the end")
    return (values if is_object else items), text[1:]


def _gemma_key(text: str) -> tuple[str, str]:
    if text.startswith(_QUOTE):
        key, rest = _gemma_value(text)
        if not rest.lstrip().startswith(":"):
            raise ValueError("a key without a value")
        return key, rest.lstrip()[1:]
    found = _KEY.match(text)
    if found is None:
        raise ValueError("no key")
    return found[1], text[found.end() :]
