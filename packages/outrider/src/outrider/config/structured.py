"""``StructuredOutput``: the form an output must have, checked as far as that needs no grammar compiler."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from outrider.errors import InvalidRequestError

Kind = Literal["json_schema", "json_object", "regex", "choice", "grammar"]

KINDS: tuple[Kind, ...] = ("json_schema", "json_object", "regex", "choice", "grammar")
MAX_SOURCE_BYTES = 256 * 1024  # of a schema, regex, grammar, or all choices together


@dataclass(frozen=True, kw_only=True)
class StructuredOutput:
    """The form of the whole output: exactly one of the first five fields is given.

    StructuredOutput(json_schema={"type": "object", "properties": {"age": {"type": "integer"}}})
    StructuredOutput(regex=r"[0-9]{3}-[0-9]{4}")
    StructuredOutput(choice=["yes", "no"])

    An output ends where its form is complete, or is cut by ``max_tokens``, and is then the beginning of one that has
    the form.
    """

    json_schema: Mapping[str, Any] | str | None = None
    """A JSON schema, as an object or as its text; kept as text."""
    json_object: bool = False
    """Any JSON object."""
    regex: str | None = None
    """The whole output matches: Rust syntax, no look-around, no back-references."""
    choice: Iterable[str] | None = None
    """One of these strings."""
    grammar: str | None = None
    """A context-free grammar, as Lark or GBNF; the first rule is ``start`` or ``root``."""
    thinking: tuple[str, str] | None = None
    """The tokens that begin and end a thinking section, as ``("<think>", "</think>")``: the form is of what follows it.

    The prompt may have opened the section; else the output may begin with one. Such an output does not end within it,
    unless ``max_tokens`` cuts it.
    """
    any_whitespace: bool = False
    """Let the model lay out JSON as it likes; else it is written ``{"a": 1, "b": [2, 3]}``, on one line."""

    def __post_init__(self) -> None:
        given = [kind for kind in KINDS if getattr(self, kind) not in (None, False)]
        if len(given) != 1:
            found = f"{len(given)} are given: {', '.join(given)}" if given else "none is given"
            raise InvalidRequestError(
                f"a structured output is exactly one of {', '.join(KINDS)}, but {found}", param="structured"
            )
        put = object.__setattr__  # a frozen dataclass normalises its fields once, here
        if self.json_schema is not None:
            put(self, "json_schema", _schema_text(self.json_schema))
        if self.choice is not None:
            put(self, "choice", _choices(self.choice))
        for kind in ("regex", "grammar"):
            value = getattr(self, kind)
            _require(value is None or (isinstance(value, str) and value != ""), kind, value, "give a text")
        if self.thinking is not None:
            markers = tuple(self.thinking)
            ok = len(markers) == 2 and all(isinstance(marker, str) and marker for marker in markers)
            _require(ok, "thinking", markers, 'give two tokens, as in ("<think>", "</think>")')
            put(self, "thinking", markers)
        for flag in ("json_object", "any_whitespace"):
            _require(isinstance(getattr(self, flag), bool), flag, getattr(self, flag), "use True or False")
        _check_size(self.kind, self.text)

    @property
    def kind(self) -> Kind:
        """Which of the five was asked for."""
        return next(kind for kind in KINDS if getattr(self, kind) not in (None, False))

    @property
    def text(self) -> str:
        """The schema, regex or grammar itself; choices as a JSON array."""
        if self.kind == "json_object":
            return '{"type": "object"}'
        value = getattr(self, self.kind)
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _require(ok: bool, param: str, value: object, remedy: str) -> None:
    if not ok:
        shown = repr(value)
        raise InvalidRequestError(
            f"{param}={shown if len(shown) <= 80 else shown[:80] + '...'} is not valid: {remedy}", param=param
        )


def _check_size(kind: str, text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidRequestError(f"{kind} is not valid Unicode: remove lone surrogates", param=kind) from None
    if size > MAX_SOURCE_BYTES:
        raise InvalidRequestError(
            f"{kind} has {size} bytes, and at most {MAX_SOURCE_BYTES} are taken: make it smaller", param=kind
        )


def _schema_text(schema: object) -> str:
    """A schema as JSON text. Text is parsed to see that it can be, but keeps its order and numbers as they are."""
    remedy = "give a JSON schema, as an object or as its text"
    try:
        if isinstance(schema, str):
            _check_size("json_schema", schema)  # before it is parsed
            _require(isinstance(json.loads(schema), dict), "json_schema", schema, remedy)
            return schema
        _require(isinstance(schema, Mapping), "json_schema", schema, remedy)
        return json.dumps(schema, ensure_ascii=False, allow_nan=False, default=_as_dict)
    except RecursionError:
        raise InvalidRequestError(
            "json_schema is nested too deeply: flatten it, or use $ref", param="json_schema"
        ) from None
    except InvalidRequestError:
        raise
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"json_schema is not JSON ({error}): {remedy}", param="json_schema") from None


def _as_dict(value: object) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"it holds a {type(value).__name__}")


def _choices(choices: object) -> tuple[str, ...]:
    remedy = "give a list of strings that are not empty"
    _require(isinstance(choices, Iterable) and not isinstance(choices, str), "choice", choices, remedy)
    assert isinstance(choices, Iterable)
    found = tuple(choices)
    _require(bool(found) and all(isinstance(c, str) and c for c in found), "choice", list(found), remedy)
    return tuple(dict.fromkeys(found))
