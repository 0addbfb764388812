"""``LlamaGrammar``: the form of an output, as GBNF or as a JSON schema."""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import Any, Self

from outrider.config.structured import StructuredOutput

_BY_NAME = ("properties", "$defs", "definitions")  # keys whose values are schemas by name
_SEVERAL = ("anyOf", "oneOf", "prefixItems")
_ONE = ("items", "additionalProperties")


class LlamaGrammar:
    """A grammar for the whole output. It is compiled when a request first uses it."""

    def __init__(self, structured: StructuredOutput) -> None:
        self.structured = structured

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> Self:
        """A GBNF grammar whose first rule is ``root``."""
        return cls(StructuredOutput(grammar=grammar))

    @classmethod
    def from_file(cls, file: str | PathLike[str], verbose: bool = True) -> Self:
        """The grammar in a file. Raises OSError if it cannot be read, ValueError if it is empty."""
        text = Path(file).read_text(encoding="utf-8")
        if not text:
            raise ValueError(f"{file} is empty: write a GBNF grammar into it")
        return cls.from_string(text)

    @classmethod
    def from_json_schema(cls, json_schema: str, verbose: bool = True) -> Self:
        """A JSON schema as text. As in llama-cpp-python, objects with listed properties have no others.

        Raises ``ValueError`` if it is not a JSON object.
        """
        given = StructuredOutput(json_schema=json_schema)
        return cls(StructuredOutput(json_schema=close_objects(json.loads(given.text))))

    @classmethod
    def any_json(cls) -> Self:
        """Any JSON object."""
        return cls(StructuredOutput(json_object=True, any_whitespace=True))


def close_objects(schema: Any) -> Any:
    """A copy of a schema in which objects with ``properties`` have no others, unless it says that they may.

    The parts of ``allOf`` stay open, as they are about one object.
    """
    if not isinstance(schema, dict):
        return schema
    closed = dict(schema)
    for key in _BY_NAME:
        if isinstance(schema.get(key), dict):
            closed[key] = {name: close_objects(each) for name, each in schema[key].items()}
    for key in _SEVERAL:
        if isinstance(schema.get(key), list):
            closed[key] = [close_objects(each) for each in schema[key]]
    for key in _ONE:
        if key in schema:
            closed[key] = close_objects(schema[key])
    if "properties" in schema:
        closed.setdefault("additionalProperties", False)
    return closed
