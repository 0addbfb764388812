"""Variables of chat templates: whether a model is to think, how much, and whether it is told of tools."""

from __future__ import annotations

import hashlib
import re
import string
from typing import Any

from outrider_server.answer.formats import THINKING, is_harmony
from outrider_server.http.errors import invalid

__all__ = ["effort_variables", "own_id", "takes_tools", "thinking_switch"]

_ENABLE = re.compile(r"(?<![\w.])enable_thinking(?!\w|\s*=[^=])")
"""A variable that is read; Nemotron Nano 2 has one of its own, which it sets from the messages."""
_THINKING = re.compile(r"(?<![\w.])thinking is (?:not )?defined")  # DeepSeek V3.1
_SHORT_IDS = re.compile(r"\|\s*length != 9\b")  # Mistral
_DIGITS = string.digits + string.ascii_letters


def effort_variables(template: str, effort: str) -> dict[str, Any]:
    """How to tell a chat template of an effort. Raises ApiError for one that this model cannot be told of."""
    if effort == "minimal" and is_harmony(template):
        effort = "low"  # the least that gpt-oss knows
    if "reasoning_effort" in template:
        none = next((word for word in ("none", "no_think") if re.search(rf"['\"]{word}['\"]", template)), None)
        if effort != "none" or none is not None:
            return {"reasoning_effort": none if effort == "none" else effort}
    if effort in ("none", "minimal"):
        return thinking_switch(template, False, "reasoning_effort")
    if _ENABLE.search(template):
        remedy = "this model's chat template only turns thinking on or off: send 'none', or leave it out"
    else:
        remedy = "this model has no efforts to choose from: leave it out"
    raise invalid(f"reasoning_effort={effort!r} is not supported: {remedy}", "reasoning_effort", "unsupported")


def thinking_switch(template: str, on: bool, param: str) -> dict[str, Any]:
    """How to tell a chat template whether to think. Raises ApiError where it cannot be told."""
    if _ENABLE.search(template):
        return {"enable_thinking": on}
    if _THINKING.search(template):
        return {"thinking": on}
    if "thinking_budget" in template:  # Seed-OSS
        return {} if on else {"thinking_budget": 0}
    if on == (is_harmony(template) or any(form.closing in template for form in THINKING)):
        return {}
    what = "does not think" if on else "always thinks"
    raise invalid(
        f"{param} cannot be turned {'on' if on else 'off'}: this model {what}; leave it out", param, "unsupported"
    )


def takes_tools(template: str) -> bool:
    """Whether a chat template writes tools into the prompt."""
    return "tools" in template


def own_id(template: str, call_id: str) -> str:
    """The id of a call as the template takes it: 9 letters and digits for Mistral's, made of other ids by a digest."""
    if not _SHORT_IDS.search(template) or re.fullmatch("[A-Za-z0-9]{9}", call_id):
        return call_id
    digest = hashlib.sha256(call_id.encode()).digest()
    return "".join(_DIGITS[byte % len(_DIGITS)] for byte in digest[:9])
