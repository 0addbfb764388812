"""Faults of one answer: of its protocol, of its calls, and of the JSON that it had to be."""

from __future__ import annotations

import json
import re
from typing import Any

from outrider_lab.certify.tool_calls.answers import Answer, Call
from outrider_lab.certify.tool_calls.cases import LEADING, Case

__all__ = ["faults_of"]

ENDS_OF_CALLS = ("tool_calls", "stop")  # OpenAI ends a call that was named with "stop"


def faults_of(case: Case, answer: Answer) -> list[str]:
    """All faults, in words; of an answer that ``max_tokens`` has cut, those of its protocol only.

    Calls that nothing forces may name an unknown tool, or miss its schema, because the model does: the caller
    compares them with the answer without drafts.
    """
    found = list(answer.broken)
    if answer.refused or answer.finish == "length":
        return found
    if answer.finish is None:
        found.append("no finish reason")
    if case.form is not None:
        return found + _faults_of_form(case, answer)
    for call in answer.calls:
        found += _faults_of_call(case, call)
    ids = [call.id for call in answer.calls]
    if not all(ids) or len(set(ids)) < len(ids):
        found.append(f"the ids of calls are empty or repeated: {ids}")
    if answer.calls and answer.finish not in ENDS_OF_CALLS:
        found.append(f"calls end with the finish reason {answer.finish!r}")
    return found + (_faults_of_forced(case, answer) if case.forced else [])


def _faults_of_form(case: Case, answer: Answer) -> list[str]:
    assert case.form is not None
    if answer.calls:
        return ["a call where tool_choice is none"]
    try:
        value = json.loads(answer.content)
    except ValueError:
        return ["the content is not JSON"]
    return [] if case.form.accepts(value) else ["the content does not match its schema"]


def _faults_of_call(case: Case, call: Call) -> list[str]:
    try:
        value: Any = json.loads(call.arguments)
    except ValueError:
        return [f"the arguments of {call.name} are not JSON"]
    if not isinstance(value, dict):
        return [f"the arguments of {call.name} are no object"]
    shape = case.tools.get(call.name)
    if shape is None:
        return [f"the tool {call.name!r} is unknown"]
    return [] if shape.accepts(value) else [f"the arguments of {call.name} do not match their schema"]


def _faults_of_forced(case: Case, answer: Answer) -> list[str]:
    if not answer.calls:
        return ["no call, where one is required"]
    names = tuple(call.name for call in answer.calls)
    if case.called and names != case.called:
        return [f"calls {', '.join(names)} instead of {', '.join(case.called)}"]
    if case.kind == "notation" and re.fullmatch(LEADING, answer.content.rstrip("\n")) is None:
        return ["parts of calls are in the text"]
    return []
