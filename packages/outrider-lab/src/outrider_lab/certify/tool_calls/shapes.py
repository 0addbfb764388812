"""Random JSON values of bounded length: each shape as a schema, as a check of a value, and as a regular expression."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["GEMMA", "JSON", "PYTHON", "RAW", "Array", "Boolean", "Choice", "Integer", "Object", "Shape", "Spelling",
           "Text", "escaped", "random_object", "random_word"]  # fmt: skip

MOST_INTEGER = 999
CHARACTERS = "a-z0-9 ,.éß日"
"""Of free strings in a family's own notation: none that a notation gives a meaning."""


@dataclass(frozen=True)
class Spelling:
    """How a notation writes values."""

    open: str = '"'
    close: str = '"'
    constants: tuple[str, str, str] = ("true", "false", "null")
    key: str = '"{}": '
    comma: str = ", "


JSON = Spelling()
PYTHON = Spelling("'", "'", ("True", "False", "None"), "'{}': ")
GEMMA = Spelling('<|"|>', '<|"|>', key="{}:", comma=",")
RAW = Spelling("", "")
"""A string on its own, as XML has it; every other value is JSON."""


class Shape(ABC):
    """A set of JSON values."""

    @property
    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """The JSON schema of these values."""

    @abstractmethod
    def accepts(self, value: Any) -> bool:
        """Whether a value is one of them."""

    @abstractmethod
    def regex(self, spelling: Spelling) -> str:
        """Rust's regular expression of these values, as a notation writes them."""


@dataclass(frozen=True)
class Choice(Shape):
    """One of some words."""

    words: tuple[str, ...]

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.words)}

    def accepts(self, value: Any) -> bool:
        return isinstance(value, str) and value in self.words

    def regex(self, spelling: Spelling) -> str:
        return escaped(spelling.open) + _either(map(escaped, self.words)) + escaped(spelling.close)


@dataclass(frozen=True)
class Text(Shape):
    """A string of at most ``most`` characters."""

    most: int

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "string", "maxLength": self.most}

    def accepts(self, value: Any) -> bool:
        return isinstance(value, str) and len(value) <= self.most

    def regex(self, spelling: Spelling) -> str:
        return f"{escaped(spelling.open)}[{CHARACTERS}]{{0,{self.most}}}{escaped(spelling.close)}"


@dataclass(frozen=True)
class Integer(Shape):
    """A whole number, or perhaps null."""

    nullable: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        kind = ["integer", "null"] if self.nullable else "integer"
        return {"type": kind, "minimum": -MOST_INTEGER, "maximum": MOST_INTEGER}

    def accepts(self, value: Any) -> bool:
        if value is None:
            return self.nullable
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MOST_INTEGER

    def regex(self, spelling: Spelling) -> str:
        return _either(["0", "-?[1-9][0-9]{0,2}", *([spelling.constants[2]] if self.nullable else [])])


@dataclass(frozen=True)
class Boolean(Shape):
    """True or false."""

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}

    def accepts(self, value: Any) -> bool:
        return isinstance(value, bool)

    def regex(self, spelling: Spelling) -> str:
        return _either(spelling.constants[:2])


@dataclass(frozen=True)
class Array(Shape):
    """At most ``most`` values of one shape."""

    item: Shape
    most: int

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": self.item.schema, "maxItems": self.most}

    def accepts(self, value: Any) -> bool:
        return isinstance(value, list) and len(value) <= self.most and all(map(self.item.accepts, value))

    def regex(self, spelling: Spelling) -> str:
        inner = JSON if spelling == RAW else spelling
        item = self.item.regex(inner)
        return rf"\[({item}({escaped(inner.comma)}{item}){{0,{self.most - 1}}})?\]"


@dataclass(frozen=True)
class Object(Shape):
    """An object that has all of these members and no others."""

    members: Mapping[str, Shape]

    @property
    def schema(self) -> dict[str, Any]:
        properties = {name: shape.schema for name, shape in self.members.items()}
        return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}

    def accepts(self, value: Any) -> bool:
        if not isinstance(value, dict) or value.keys() != self.members.keys():
            return False
        return all(shape.accepts(value[name]) for name, shape in self.members.items())

    def regex(self, spelling: Spelling) -> str:
        inner = JSON if spelling == RAW else spelling
        members = (escaped(inner.key.format(name)) + shape.regex(inner) for name, shape in self.members.items())
        return r"\{" + escaped(inner.comma).join(members) + r"\}"


def escaped(text: str) -> str:
    """A regular expression of ``text`` alone, in Rust's syntax and in Python's."""
    return "".join(f"\\{each}" if each in r"\.+*?()|[]{}^$" else each for each in text)


def _either(options: Any) -> str:
    return f"({'|'.join(options)})"


# -- chance ------------------------------------------------------------------------------------------------------------

SYLLABLES = ("ka", "lo", "mi", "ru", "te", "so", "vi", "na", "po", "du", "shi", "bre")


def random_word(rng: random.Random) -> str:
    """A word that hardly another case has: a token of another request stands out."""
    return "".join(rng.choice(SYLLABLES) for _ in range(3)) + str(rng.randrange(100))


def random_object(rng: random.Random, depth: int) -> Object:
    """Two to four members, the first a choice of words of its own; objects and lists are ``depth`` deep."""
    members: dict[str, Shape] = {random_word(rng): Choice(tuple(random_word(rng) for _ in range(3)))}
    for _ in range(rng.randrange(1, 4)):
        members[random_word(rng)] = _random_shape(rng, depth)
    return Object(members)


def _random_shape(rng: random.Random, depth: int) -> Shape:
    plain: Sequence[Shape] = (
        Text(rng.randrange(1, 12)), Integer(), Integer(nullable=True), Boolean(), Choice((random_word(rng), "a b")),
    )  # fmt: skip
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(plain)
    if rng.random() < 0.4:
        return Array(_random_shape(rng, depth - 1), 2)
    return Object({random_word(rng): _random_shape(rng, depth - 1) for _ in range(rng.randrange(1, 3))})
