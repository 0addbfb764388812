"""A model's answer format, read from its chat template: markers of thinking and tool calls, and the thinking switch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outrider.tokenizer.tokenizer import Tokenizer
from outrider_server.http.errors import invalid

THINKING = (
    ("<think>", "</think>"),  # Qwen 3, QwQ, DeepSeek-R1, SmolLM3
    ("[THINK]", "[/THINK]"),  # Magistral
)
"""Where a thinking section begins and ends."""

TAIL_TOKENS = 8  # of a prompt, enough for a marker and line breaks behind it


@dataclass(frozen=True)
class ToolFormat:
    """Between ``opening`` and ``closing`` stands a call, or a list of them; without ``closing``, to the end."""

    opening: str | None
    closing: str = ""
    bare: bool = False  # an answer that is JSON as a whole is a call as well


TOOL_FORMATS = (
    ToolFormat("<tool_call>", "</tool_call>"),  # Hermes, Qwen, SmolLM; Qwen 3 Coder, with XML inside
    ToolFormat("[TOOL_CALLS]"),  # Mistral
    ToolFormat("<|python_tag|>", bare=True),  # Llama 3
)
BARE = ToolFormat(None, bare=True)
"""Llama 3.2, and calls that a grammar forces."""


@dataclass(frozen=True)
class AnswerFormat:
    """How the answers of a model are written."""

    thinking: tuple[str, str] | None
    tools: ToolFormat
    thinking_ids: tuple[int, int] | None = None
    """The markers of thinking as tokens; None if the model does not think, or a marker is several tokens."""
    thinking_marker_ids: frozenset[int] = frozenset()
    """Markers of thinking that are control tokens, which text leaves out unless told otherwise."""
    tool_marker_ids: frozenset[int] = frozenset()
    """The same, with the markers of tool calls."""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> AnswerFormat:
        """Read once for each model that is served."""
        template = tokenizer.chat_template or ""
        tools = next((form for form in TOOL_FORMATS if form.opening and form.opening in template), BARE)
        thinking = next((pair for pair in THINKING if pair[1] in template), None)
        ids = [i for text in thinking or () if (i := tokenizer.vocabulary.get(text)) is not None]
        of_tools = [tokenizer.vocabulary.get(text) for text in (tools.opening, tools.closing) if text]
        special = tokenizer.special_ids
        own = frozenset(i for i in ids if i in special)
        return cls(
            thinking,
            tools,
            (ids[0], ids[1]) if len(ids) == 2 else None,
            own,
            own | {i for i in of_tools if i is not None and i in special},
        )

    def begins_thinking(self, tokenizer: Tokenizer, prompt: tuple[int, ...]) -> bool:
        """Whether a prompt ends within a thinking section, which the template has opened."""
        if self.thinking is None:
            return False
        tail = tokenizer.decode(prompt[-TAIL_TOKENS:], skip_special_tokens=False)
        return tail.rstrip().endswith(self.thinking[0])


PLAIN = AnswerFormat(None, BARE)
"""Text and nothing else."""


def effort_variables(template: str, effort: str) -> dict[str, Any]:
    """How to tell a chat template of an effort. Raises ApiError for one that this model cannot be told of."""
    if "reasoning_effort" in template and effort != "none":
        return {"reasoning_effort": effort}
    if effort in ("none", "minimal"):
        return thinking_switch(template, False, "reasoning_effort")
    if "enable_thinking" in template:
        remedy = "this model's chat template only turns thinking on or off: send 'none', or leave it out"
    else:
        remedy = "this model has no efforts to choose from: leave it out"
    raise invalid(f"reasoning_effort={effort!r} is not supported: {remedy}", "reasoning_effort", "unsupported")


def thinking_switch(template: str, on: bool, param: str) -> dict[str, Any]:
    """How to tell a chat template whether to think. Raises ApiError where it cannot be told."""
    if "enable_thinking" in template:
        return {"enable_thinking": on}
    if on == any(closing in template for _, closing in THINKING):
        return {}
    what = "does not think" if on else "always thinks"
    raise invalid(
        f"{param} cannot be turned {'on' if on else 'off'}: this model {what}; leave it out", param, "unsupported"
    )


def takes_tools(template: str) -> bool:
    """Whether a chat template writes tools into the prompt."""
    return "tools" in template
