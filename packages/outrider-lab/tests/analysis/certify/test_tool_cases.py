"""Cases of tool calls, and the judges of their answers."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from outrider_lab.certify.tool_calls.answers import Answer, Call
from outrider_lab.certify.tool_calls.cases import KINDS, Case, make_cases
from outrider_lab.certify.tool_calls.faults import faults_of
from outrider_lab.certify.tool_calls.notations import NOTATIONS
from outrider_lab.certify.tool_calls.shapes import JSON, Object, random_object
from outrider_server.answer.formats import TOOL_FORMATS
from tests.analysis.certify.tool_models import TOLD
from tests.analysis.certify.tool_server import least


def test_cases_follow_from_the_seed_and_have_every_kind() -> None:
    cases = make_cases(36, 7, notation="hermes")
    assert cases == make_cases(36, 7, notation="hermes")
    assert cases != make_cases(36, 8, notation="hermes")
    assert {(case.kind, case.sampled) for case in cases} == {(kind, drawn) for kind in KINDS for drawn in (True, False)}


def answer_of(case: Case, **changes: Any) -> Answer:
    name, shape = next(iter(case.tools.items()))
    call = Call(name, json.dumps(least(shape.schema)), "1")
    return Answer(**({"calls": (call,), "finish": "tool_calls"} | changes))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({}, ""),
        ({"finish": None}, "no finish reason"),
        ({"calls": ()}, "no call"),
        ({"calls": (Call("other", "{}", "1"),)}, "is unknown"),
        ({"calls": (Call("get_x", "[]", "1"),)}, "no object"),
        ({"calls": (Call("get_x", '{"a": ', "1"),)}, "not JSON"),
        ({"finish": "content_filter"}, "finish reason 'content_filter'"),
        ({"broken": ("the stream ends without [DONE]",)}, "without [DONE]"),
    ],
)
def test_faults_of_an_answer(changes: dict[str, Any], fault: str) -> None:
    case = make_cases(2, 0)[1]
    found = faults_of(case, answer_of(case, **changes))
    assert (not found) == (not fault)
    assert fault in "; ".join(found)


def test_shapes_agree_with_their_schemas_and_regexes() -> None:
    rng = random.Random(3)
    for _ in range(50):
        shape = random_object(rng, 2)
        value = least(shape.schema)
        assert shape.accepts(value)
        assert re.fullmatch(shape.regex(JSON), json.dumps(value))
        assert not shape.accepts(value | {"more": 1})
        assert not shape.accepts({key: each for key, each in value.items() if key != next(iter(value))})
        assert not shape.accepts(value | {next(iter(value)): "no such word"})


def test_every_notation_of_the_server_is_in_the_suite() -> None:
    """A format more in the server is a notation more here."""
    assert set(TOLD) == set(NOTATIONS)
    samples = [NOTATIONS[name]([("f", Object({}))]) for name in NOTATIONS]
    for form in TOOL_FORMATS:
        assert any(re.escape(form.opening or "") in re.escape(sample.replace("\\", "")) for sample in samples), form
