"""JSON schemas, regexes and grammars that are almost right: sound ones, changed by their own structure."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]},
    {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 9}, "minItems": 1, "maxItems": 3},
    {"anyOf": [{"const": 1}, {"enum": ["x", "y", None]}, {"type": "boolean"}]},
    {"$ref": "#/$defs/node", "$defs": {"node": {"type": "array", "items": {"$ref": "#/$defs/node"}}}},
    {"type": "string", "pattern": "^[a-c]{2,5}$", "maxLength": 8},
    {"type": "string", "format": "date-time"},
    {"allOf": [{"type": "object", "properties": {"a": {"type": "null"}}}, {"required": ["a"]}]},
    {"type": "object", "additionalProperties": {"type": "integer", "multipleOf": 3}, "maxProperties": 2},
    {"type": "object", "patternProperties": {"^x": {"type": "string"}}, "additionalProperties": False},
    {"type": "array", "prefixItems": [{"const": "a"}, {"type": "integer"}], "items": False},
    {"oneOf": [{"type": "integer", "exclusiveMinimum": 3}, {"type": "string", "minLength": 2}]},
)
KEYWORDS = (
    *("type", "const", "enum", "properties", "required", "items", "prefixItems", "anyOf", "allOf", "oneOf", "not"),
    *("$ref", "$defs", "pattern", "format", "minLength", "maxLength", "minimum", "maximum", "exclusiveMaximum"),
    *(
        "multipleOf",
        "minItems",
        "maxItems",
        "uniqueItems",
        "additionalProperties",
        "patternProperties",
        "maxProperties",
    ),
    *(
        "dependentRequired",
        "if",
        "then",
        "else",
        "contains",
        "propertyNames",
        "default",
        "title",
        "$schema",
        "$id",
        "x",
    ),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 17, 1000, 10**6, 2**53, 10**30, 0.1, 1e-9, 1e308, -1e308),
    *(
        "",
        "a",
        "é",
        "\ud800",
        "\0",
        "(a+)+$",
        "[",
        "^$",
        "#",
        "#/$defs/node",
        "#/properties/a",
        "#/x/0",
        "date",
        "uuid",
    ),
    *("integer", "object", "array", "null", "string", ["integer", "null"], [], {}, [{}], ["a", "a"], list(range(300))),
    *({"type": "integer"}, {"$ref": "#"}, {"const": {"a": [1]}}, {f"k{i}": {} for i in range(40)}),
)
ATOMS = ("a", "b", "0", ".", "\\d", "\\w", "\\s", "\\S", "[a-z]", "[^a]", "[\\d_-]", "é", "\\x41", "\\u0041", "\\.", "")
ODD_ATOMS = (
    "\\b",
    "\\1",
    "(?=a)",
    "(?!a)",
    "(?<=a)",
    "^",
    "$",
    "\\p{L}",
    "\\P{Nope}",
    "[z-a]",
    "[]",
    "\\",
    "\ud800",
    "[[:alpha:]]",
)
QUANTIFIERS = ("", "", "", "*", "+", "?", "*?", "{2}", "{1,3}", "{0,40}", "{3,}", "{0}")
ODD_QUANTIFIERS = ("{1000}", "{1,100000}", "{3,1}", "**", "{,}", "{99999999999}", "*+", "{-1}")
GRAMMARS = (
    'root ::= "a" | "b" root\nws ::= [ \\t]*',
    'root ::= object\nobject ::= "{" (pair ("," pair)*)? "}"\npair ::= name ":" [0-9]{1,4}\nname ::= [a-z]+',
    'root ::= (word " "){1,3} "."\nword ::= "x" | "yy" | [^a-z]',
    'start: expr\nexpr: term ("+" term)*\nterm: NUMBER | "(" expr ")"\nNUMBER: /[0-9]+/',
    'start: WORD ("," WORD)* "."?\nWORD: /[a-f]{1,4}/\n%ignore / +/',
    'start: item+\nitem: "a" -> first | "b" "c"? -> second',
)
TOKENS = (
    *("::=", ":", "|", "(", ")", "*", "+", "?", "{2}", "{0,5}", "{1,99999}", "{3,1}", "[a-z]", "[^\\n]", "[]", "[z-a]"),
    *(
        '"x"',
        '""',
        '"\\n"',
        '"\\ud83d"',
        '"\\U0011FFFF"',
        "/a+/",
        "/(/",
        "/a*/i",
        "root",
        "start",
        "expr",
        "word",
        "nobody",
    ),
    *(
        "\n",
        "\n\n",
        "#",
        "//",
        "%import common.INT",
        "%ignore",
        "%json {}",
        '%json {"type":"null"}',
        "%regex",
        "~",
        "->",
    ),
    *(
        "[capture]",
        "[max_tokens=3]",
        "[temperature=0.5]",
        "@special",
        "<|eos|>",
        "<[0-9]>",
        "<[*]>",
        "\0",
        "é",
        " ",
        "&",
        ".",
    ),
)


def schema(rng: random.Random) -> Any:
    """A JSON schema after one to six changes."""
    value: Any = copy.deepcopy(rng.choice(SCHEMAS))
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        value = _change(value, rng)
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) below ``value``."""
    keys = list(value) if isinstance(value, dict) else range(min(len(value), 20))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def _change(value: Any, rng: random.Random) -> Any:
    places = list(_places(value)) if isinstance(value, dict | list) else []
    if not places or len(places) > 3000:
        return copy.deepcopy(rng.choice(SCHEMAS))
    holder, key = rng.choice(places)
    kind = rng.randrange(8)
    if kind == 0:
        del holder[key]
    elif kind == 1:
        other, where = rng.choice(places)
        holder[key] = copy.deepcopy(other[where])
    elif kind == 2:
        return {rng.choice(("anyOf", "allOf", "oneOf")): [value, copy.deepcopy(rng.choice(SCHEMAS))]}
    elif kind == 3:
        holder[key] = copy.deepcopy(rng.choice(SCHEMAS))
    elif kind == 4:
        for _ in range(rng.choice((3, 12, 60))):
            value = {rng.choice(("items", "not", "additionalProperties", "contains")): value, "type": "array"}
    elif isinstance(holder, dict) and kind < 7:
        holder[rng.choice(KEYWORDS)] = copy.deepcopy(rng.choice(VALUES))
    else:
        holder[key] = copy.deepcopy(rng.choice(VALUES))
    return value


def regex(rng: random.Random, depth: int = 0) -> str:
    """A regular expression, odd in places."""

    def pick(plain: Sequence[str], odd: Sequence[str]) -> str:
        return rng.choice(odd if rng.random() < 0.06 else plain)

    parts = []
    for _ in range(rng.randint(1, 4)):
        atom = pick(ATOMS, ODD_ATOMS)
        if depth < 5 and rng.random() < 0.35:
            atom = f"{rng.choice(('(', '(?:', '(?P<n>', '('))}{regex(rng, depth + 1)})"
        parts.append(atom + pick(QUANTIFIERS, ODD_QUANTIFIERS))
    made = rng.choice(("", "|")).join(parts)
    if depth == 0 and rng.random() < 0.1:
        at = rng.randrange(len(made) + 1)
        made = made[:at] + rng.choice("()[]{}|*\\") + made[at:]
    if depth == 0 and rng.random() < 0.03:
        made *= rng.choice((10, 300))
    return made


def grammar(rng: random.Random) -> str:
    """A GBNF or Lark grammar, token by token somewhere else."""
    return rearranged(rng.choice(GRAMMARS), TOKENS, rng)


def rearranged(text: str, pool: Sequence[str], rng: random.Random) -> str:
    """A text whose tokens are left out, repeated, exchanged, or joined by others, up to eight times."""
    tokens = re.findall(r'"[^"\n]*"|/[^/\n]*/|\w+|\s+|\{%-?|-?%\}|\{\{|\}\}|[^\w\s]', text)
    for _ in range(rng.choice((1, 2, 3, 8))):
        at, kind = rng.randrange(len(tokens) + 1), rng.randrange(5)
        if kind == 0:
            tokens[at : at + rng.choice((1, 1, 4))] = []
        elif kind == 1:
            tokens[at:at] = tokens[at : at + rng.choice((1, 5, 20))] * rng.choice((1, 1, 3, 50))
        elif kind == 2 and tokens:
            one, other = rng.randrange(len(tokens)), rng.randrange(len(tokens))
            tokens[one], tokens[other] = tokens[other], tokens[one]
        else:
            tokens[at : at + kind - 3] = [rng.choice(pool)]
        if not tokens:
            tokens = [rng.choice(pool)]
    return "".join(tokens)


KINDS: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "schema": lambda rng: {"structured_outputs": {"json": schema(rng)}},
    "regex": lambda rng: {"structured_outputs": {"regex": regex(rng)}},
    "grammar": lambda rng: {"grammar": grammar(rng)},
    "schema as text": lambda rng: {"structured_outputs": {"json": json.dumps(schema(rng))}},
}
"""Fields of a request for something of each kind."""
