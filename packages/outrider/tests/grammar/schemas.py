"""Random JSON schemas: everything that people write, nested and mixed."""

from __future__ import annotations

import random
from typing import Any

Schema = dict[str, Any]

WORDS = ("name", "id", "tags", "size", "the hello", "h\u00e9llo", 'quo"ted', "a", "b", "is-open", "x_1")
PATTERNS = ("^[a-z]{2,6}$", "^(he|wo)(llo|rld)[0-9]?$", "^[A-Z][a-z ]{1,8}\\.$", "^\\d{3}-\\d{4}$", "^$|^-$")
FORMATS = ("date", "uuid", "ipv4", "email", "time")


def random_schema(rng: random.Random) -> Schema:
    """A schema whose instances are an object or an array, with some bound on every length."""
    schema = rng.choice((_object, _object, _object, _array))(rng, 3)
    if rng.random() < 0.15:  # a list as long as one likes, by reference
        item = _any(rng, 1)
        schema["$defs"] = {"node": {"type": "object", "properties": {"item": item, "rest": {"$ref": "#/$defs/node"}},
                                    "required": ["item"], "additionalProperties": False}}  # fmt: skip
        schema.setdefault("properties", {})["list"] = {"$ref": "#/$defs/node"}
        if schema["type"] == "object":
            schema["required"] = [*schema.get("required", ()), "list"]
    return schema


def _any(rng: random.Random, depth: int) -> Schema:
    if depth > 0 and rng.random() < 0.4:
        return rng.choice((_object, _array, _any_of))(rng, depth)
    return rng.choice((_string, _string, _integer, _number, _enum, _const, _simple))(rng, depth)


def _object(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(WORDS, rng.randint(1, 4))
    schema: Schema = {
        "type": "object",
        "properties": {name: _any(rng, depth - 1) for name in names},
        "required": [name for name in names if rng.random() < 0.6],
        "additionalProperties": False,
    }
    if rng.random() < 0.2:
        schema["additionalProperties"] = _simple(rng, 0)
    return schema


def _array(rng: random.Random, depth: int) -> Schema:
    schema: Schema = {"type": "array", "items": _any(rng, depth - 1), "maxItems": rng.randint(1, 4)}
    if rng.random() < 0.5:
        schema["minItems"] = rng.randint(0, schema["maxItems"])
    if rng.random() < 0.2:
        schema["prefixItems"] = [_any(rng, depth - 1)]
    return schema


def _any_of(rng: random.Random, depth: int) -> Schema:
    return {"anyOf": [_any(rng, depth - 1) for _ in range(rng.randint(2, 3))]}


def _string(rng: random.Random, depth: int) -> Schema:
    kind = rng.random()
    if kind < 0.3:
        return {"type": "string", "pattern": rng.choice(PATTERNS)}
    if kind < 0.45:
        return {"type": "string", "format": rng.choice(FORMATS)}
    least = rng.randint(0, 4)
    return {"type": "string", "minLength": least, "maxLength": least + rng.randint(0, 8)}


def _integer(rng: random.Random, depth: int) -> Schema:
    low = rng.randint(-1200, 1000)
    schema: Schema = {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 5000)}
    if rng.random() < 0.2:
        return {"type": "integer", "multipleOf": rng.choice((2, 5, 12)), "minimum": 0, "maximum": 600}
    if rng.random() < 0.3:
        schema["exclusiveMinimum"] = low - 1
    return schema


def _number(rng: random.Random, depth: int) -> Schema:
    low = round(rng.uniform(-50, 50), rng.randint(0, 2))
    return {"type": "number", "minimum": low, rng.choice(("maximum", "exclusiveMaximum")): low + rng.randint(1, 90)}


def _enum(rng: random.Random, depth: int) -> Schema:
    values = [
        "hello",
        "world",
        "the hello world",
        12,
        -3.5,
        None,
        True,
        "h\u00e9llo",
        "\u65e5\u672c",
        [1, "a"],
        {"a": 1},
    ]
    return {"enum": rng.sample(values, rng.randint(1, 4))}


def _const(rng: random.Random, depth: int) -> Schema:
    return {"const": rng.choice(["hello", 12, False, None, {"a": [1, 2]}, 'quo"ted \\ \n'])}


def _simple(rng: random.Random, depth: int) -> Schema:
    return {"type": rng.choice(("boolean", "null", ["boolean", "null"]))}
