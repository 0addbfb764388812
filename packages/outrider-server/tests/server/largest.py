"""Every field of every request at its largest, and in shapes that it does not have, made from the OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

REF = "#/components/schemas/"
SHORT = {"max_tokens": 2, "max_completion_tokens": 2, "max_output_tokens": 2, "n_predict": 2, "stream": False}
SHORT_OPTIONS = {"num_predict": 2}  # Ollama's
MAX_DEPTH = 4

JSON = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A body, of which one field is hostile."""

    path: str
    field: str
    shape: str
    make: Callable[[], bytes]  # thousands of them, of a megabyte each: a body exists while it is sent

    @cached_property
    def body(self) -> bytes:
        return self.make()

    def __str__(self) -> str:
        return f"{self.path} {self.field} {self.shape}, {len(self.body)} bytes"


def cases(document: JSON, size: int) -> Iterator[Case]:
    """``size``: bytes of the hostile field."""
    schemas = document["components"]["schemas"]
    hostile = shapes(size)
    for path, methods in document["paths"].items():
        content = methods.get("post", {}).get("requestBody", {}).get("content", {})
        if "application/json" not in content:  # forms with files have tests of their own
            continue
        schema = content["application/json"]["schema"]
        for names, own in _fields(schema, schemas):
            for shape, text in hostile.items():
                yield Case(path, ".".join(names), shape, partial(_body, schema, schemas, names, text))
            for number in _bounds(own, schemas):
                body = partial(_body, schema, schemas, names, json.dumps(number))
                yield Case(path, ".".join(names), "bound", body)


def shapes(size: int) -> dict[str, str]:
    """JSON texts of about so many bytes; those of few large values first."""

    def repeated(item: str) -> str:
        return "[" + ",".join([item] * (size // (len(item) + 1))) + "]"

    def named(item: str, most: int) -> str:
        count = min(most, size // (len(item) + 12))
        return "{" + ",".join(f'"{10000 + i}":{item}' for i in range(count)) + "}"

    return {
        "text": json.dumps("a" * size),
        "words": json.dumps("hello world " * (size // 12)),
        "spaces": json.dumps(" " * size),
        "line breaks": json.dumps("\n" * (size // 2)),
        "emoji": json.dumps("\U0001f600" * (size // 4), ensure_ascii=False),
        "tokens": repeated("5"),
        "numbers": repeated("1.5"),
        "a long list of numbers": "[" + ",".join(["1.5"] * min(200_000, size // 4)) + "]",
        "texts": repeated('"x"'),
        "nulls": repeated("null"),
        "objects": repeated("{}"),
        "lists": repeated("[]"),
        "some objects": "[" + ",".join(["{}"] * min(15_000, size // 3)) + "]",
        "some lists": "[" + ",".join(["[5]"] * min(15_000, size // 3)) + "]",
        "many names": named("1", size),
        "some names": named("1", 15_000),
        "some names of texts": named('"x"', 15_000),
        "a long name": json.dumps({"9" * size: 1}),
        "a deep list": "[" * min(5000, size // 2) + "]" * min(5000, size // 2),
        "digits": "9" * min(size, 4000),
    }


def _bounds(schema: JSON, schemas: JSON) -> list[float]:
    """The largest and smallest numbers that a field takes."""
    found: list[float] = []
    for own in _alternatives(schema, schemas):
        if own.get("type") in ("integer", "number"):
            step = 1 if own["type"] == "integer" else 0
            found += [own[name] for name in ("maximum", "minimum") if name in own]
            found += [own[name] + sign * step for name, sign in (("exclusiveMaximum", -1),) if name in own]
    return [number for number in found if isinstance(number, int) or number == number]


def _fields(schema: JSON, schemas: JSON, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], JSON]]:
    """The names that lead to each field, ``0`` for an element of a list, and its schema."""
    if len(above) >= MAX_DEPTH:
        return
    for own in _alternatives(schema, schemas):
        inner = dict(own.get("properties", {}))
        if own.get("type") == "array" and isinstance(own.get("items"), dict):
            inner = {"0": own["items"]}
        for name, part in inner.items():
            names = (*above, name)
            yield names, part
            yield from _fields(part, schemas, names)


def _alternatives(schema: JSON, schemas: JSON) -> list[JSON]:
    if "$ref" in schema:
        return _alternatives(schemas[schema["$ref"].removeprefix(REF)], schemas)
    if "anyOf" in schema:
        return [own for part in schema["anyOf"] for own in _alternatives(part, schemas)]
    return [schema]


def _body(schema: JSON, schemas: JSON, names: tuple[str, ...], text: str) -> bytes:
    """A body that is right except for one field, whose JSON is ``text``."""
    value = _with(schema, schemas, names, "\x00here")
    if isinstance(value, dict):
        value |= {name: count for name, count in SHORT.items() if name in _names(schema, schemas) and name not in names}
        if "options" in _names(schema, schemas) and "options" not in names:
            value["options"] = SHORT_OPTIONS
    return json.dumps(value).replace(json.dumps("\x00here"), text).encode()


def _names(schema: JSON, schemas: JSON) -> set[str]:
    return {name for own in _alternatives(schema, schemas) for name in own.get("properties", {})}


def _with(schema: JSON, schemas: JSON, names: tuple[str, ...], mark: Any) -> Any:
    """A value with ``mark`` at the end of ``names``; None if no alternative of the schema has such a place."""
    if not names:
        return mark
    for own in _alternatives(schema, schemas):
        is_list = names[0] == "0" and isinstance(own.get("items"), dict)
        part = own["items"] if is_list else own.get("properties", {}).get(names[0])
        inner = None if part is None else _with(part, schemas, names[1:], mark)
        if inner is not None:
            return [inner] if is_list else _minimal(own, schemas) | {names[0]: inner}
    return None


def _minimal(schema: JSON, schemas: JSON) -> Any:
    """The smallest value of a schema."""
    own = _alternatives(schema, schemas)[0]
    if "const" in own or "enum" in own:
        return own.get("const", own.get("enum", [None])[0])
    kinds: JSON = {"string": "hello", "integer": own.get("minimum", 1), "number": 1, "boolean": True, "null": None}
    if own.get("type") == "array":
        return [_minimal(own["items"], schemas)]
    if own.get("type") == "object":
        return {name: _minimal(own["properties"][name], schemas) for name in own.get("required", ())}
    return kinds.get(own.get("type", ""), 1)
