"""``StructuredOutput`` refuses what cannot be a form of output before any grammar is compiled."""

from __future__ import annotations

import math
from typing import Any

import pytest

from outrider import SamplingParams, StructuredOutput
from outrider.config.structured import MAX_SOURCE_BYTES
from outrider.errors import InvalidRequestError


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def circle() -> dict[str, Any]:
    schema: dict[str, Any] = {}
    schema["items"] = schema
    return schema


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "nothing": ({}, "none is given", "structured"),
    "two": ({"regex": "a", "choice": ["a"]}, "2 are given: regex, choice", "structured"),
    "empty regex": ({"regex": ""}, "regex='' is not valid", "regex"),
    "regex that is no text": ({"regex": 3}, "regex=3", "regex"),
    "empty grammar": ({"grammar": ""}, "grammar=''", "grammar"),
    "no choices": ({"choice": []}, r"choice=\[\]", "choice"),
    "empty choice": ({"choice": ["a", ""]}, "not empty", "choice"),
    "choice that is a text": ({"choice": "yes"}, "choice='yes'", "choice"),
    "choice of numbers": ({"choice": [1]}, r"choice=\[1\]", "choice"),
    "choice of lists": ({"choice": [["a"]]}, r"choice=\[\['a'\]\]", "choice"),
    "schema that is no JSON": ({"json_schema": "{"}, "json_schema is not JSON", "json_schema"),
    "schema that is a list": ({"json_schema": "[]"}, r"json_schema='\[\]'", "json_schema"),
    "schema with NaN": ({"json_schema": {"const": math.nan}}, "json_schema is not JSON", "json_schema"),
    "schema with a set": ({"json_schema": {"enum": {1}}}, "it holds a set", "json_schema"),
    "deep text": ({"json_schema": '{"a":' * 40_000 + "1" + "}" * 40_000}, "nested too deeply", "json_schema"),
    "deep object": ({"json_schema": deep(50_000)}, "nested too deeply", "json_schema"),
    "circle": ({"json_schema": circle()}, "Circular|nested too deeply", "json_schema"),
    "ten megabytes": ({"json_schema": {"description": "x" * 10**7}}, "10000019 bytes", "json_schema"),
    "ten megabytes of text": ({"json_schema": '{"description": "' + "x" * 10**7}, "bytes", "json_schema"),
    "long regex": ({"regex": "a" * (MAX_SOURCE_BYTES + 1)}, f"at most {MAX_SOURCE_BYTES}", "regex"),
    "long choices": ({"choice": [f"{i:09}" for i in range(30_000)]}, "make it smaller", "choice"),
    "half a character": ({"regex": "\ud800"}, "lone surrogates", "regex"),
    "flag that is no flag": ({"json_object": 1}, "json_object=1", "json_object"),
    "whitespace that is no flag": ({"regex": "a", "any_whitespace": "yes"}, "any_whitespace='yes'", "any_whitespace"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_forms_that_are_refused(name: str) -> None:
    options, message, param = REFUSED[name]
    with pytest.raises(InvalidRequestError, match=message) as caught:
        StructuredOutput(**options)
    assert caught.value.param == param
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_forms_are_normalised() -> None:
    as_object = StructuredOutput(json_schema={"type": "object"})
    assert as_object == StructuredOutput(json_schema='{"type": "object"}')
    assert (as_object.kind, as_object.text) == ("json_schema", '{"type": "object"}')
    assert StructuredOutput(json_object=True).text == '{"type": "object"}'
    choice = StructuredOutput(choice=(c for c in ["a", "b", "a"]))
    assert (choice.choice, choice.text) == (("a", "b"), '["a", "b"]')
    assert hash(choice) == hash(StructuredOutput(choice=["a", "b"]))


def test_sampling_options_that_do_not_go_with_a_form() -> None:
    with pytest.raises(InvalidRequestError, match="ignore_eos=True"):
        SamplingParams(structured=StructuredOutput(json_object=True), ignore_eos=True)
    with pytest.raises(InvalidRequestError, match="structured='json'"):
        SamplingParams(structured="json")  # type: ignore[arg-type]
