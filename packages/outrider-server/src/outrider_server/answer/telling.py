"""Conversations for chat templates that know no tools, or no system message but the first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

__all__ = ["move_system_messages", "tell_tools"]

_TOLD = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""
"""The words of Hermes and Qwen 2.5, which many models have read."""


def tell_tools(messages: list[dict[str, Any]], tools: Sequence[dict[str, Any]], template: str) -> list[dict[str, Any]]:
    """``messages`` with the tools told in front, and with their results as the user's turns.

    ``template`` is the model's own: where it has no system message, the user's first one tells the tools.
    """
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    opening = {"role": "system", "content": _TOLD.format(tools=listed)}
    if messages[0]["role"] == "system":
        opening["content"] = _joined(messages[0]["content"], opening["content"])
        messages = messages[1:]
    own = [opening] if "system" in template else [opening | {"role": "user"}]
    for message in messages:
        if message["role"] == "tool":
            _add(own, {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"})
        else:
            _add(own, message)
    return own


def move_system_messages(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """``messages`` with those of the system in front as one, and later ones in the user's turns; None: as they are.

    Agents send several, and some between the turns.
    """
    first = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    if first < 2 and all(message["role"] != "system" for message in messages[first:]):
        return None
    own: list[dict[str, Any]] = []
    for message in messages[:first]:
        own = [message | {"content": _joined(own[0]["content"], message["content"])}] if own else [message]
    for message in messages[first:]:
        _add(own, message if message["role"] != "system" else {"role": "user", "content": message["content"]})
    return own


def _add(turns: list[dict[str, Any]], message: dict[str, Any]) -> None:
    """Add a message; the user's goes on with a turn that is the user's, as templates expect turns that alternate."""
    if turns and message["role"] == "user" == turns[-1]["role"]:
        turns[-1] = turns[-1] | {"content": _joined(turns[-1]["content"], message["content"])}
    else:
        turns.append(message)


def _joined(first: Any, second: Any) -> Any:
    """Two contents as one: texts, or lists of parts where there are images."""
    if isinstance(first, str) and isinstance(second, str):
        return "\n\n".join(text for text in (first, second) if text)
    parts = [[{"type": "text", "text": own}] if isinstance(own, str) else own for own in (first, second)]
    return parts[0] + parts[1]
