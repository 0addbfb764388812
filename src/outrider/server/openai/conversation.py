"""Chat messages as the model's template takes them, and as token ids."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol, cast

from outrider.server.answer.formats import THINKING
from outrider.server.http.errors import invalid
from outrider.server.openai.schema.chat import ContentPart, Message, Tool
from outrider.server.service import Service
from outrider.tokenizer.chat_template import Rendered
from outrider.tokenizer.tokenizer import Tokenizer

RESERVED = {"messages", "tools", "add_generation_prompt", "documents"}


class Conversation(Protocol):
    """The fields that a prompt is made of."""

    messages: list[Message] | None
    tools: list[Tool] | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None
    chat_template_kwargs: dict[str, Any] | None


def encode_messages(service: Service, body: Any, *, tools: bool = True) -> list[int]:
    """The prompt of a ``Conversation`` as ids; ``tools=False`` leaves its tools unmentioned."""
    rendered = render_messages(service, body, tools=tools)
    return service.tokenizer.encode_rendered(rendered, parse_special=bool(body.parse_special))


def render_messages(service: Service, body: Any, *, tools: bool = True) -> Rendered:
    """The prompt of a ``Conversation`` as text."""
    tokenizer, conversation = service.tokenizer, cast(Conversation, body)
    messages = plain_messages(conversation.messages or [], tokenizer.chat_template or "")
    variables = _variables(tokenizer, conversation, tools)
    opened = conversation.add_generation_prompt is not False
    if conversation.continue_final_message:
        if conversation.add_generation_prompt:
            raise invalid("add_generation_prompt contradicts continue_final_message: give one", "add_generation_prompt")
        if messages[-1]["role"] != "assistant" or not messages[-1].get("content"):
            raise invalid("continue_final_message needs an assistant message at the end", "messages")
        opened = False
    rendered = tokenizer.template.render(
        messages, add_generation_prompt=opened, variables=variables, limit=service.max_characters
    )
    return _open_ended(rendered, messages[-1]["content"]) if conversation.continue_final_message else rendered


def _open_ended(rendered: Rendered, last: str) -> Rendered:
    """The rendered conversation up to the end of its last message, for the model to go on from there."""
    end = rendered.text.rfind(last.strip())
    if end < 0:
        raise invalid("the chat template rewrites the last message, so that it cannot be continued", "messages")
    return rendered.until(end + len(last.strip()))


def _variables(tokenizer: Tokenizer, body: Conversation, tools: bool) -> dict[str, Any]:
    given = dict(body.chat_template_kwargs or {})
    for name in given:
        if name in RESERVED or name.endswith("_token"):
            raise invalid(f"chat_template_kwargs cannot set {name[:40]}", f"chat_template_kwargs.{name[:40]}")
    effort = getattr(body, "reasoning_effort", None)
    if effort is not None:
        given = effort_variables(tokenizer.chat_template or "", effort) | given
    if body.tools and tools:
        if not takes_tools(tokenizer):
            raise invalid("this model's chat template knows no tools: use another model", "tools", "unsupported")
        given["tools"] = [tool.model_dump(exclude_none=True) for tool in body.tools]
    return given


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


def takes_tools(tokenizer: Tokenizer) -> bool:
    """Whether the chat template writes tools into the prompt."""
    return "tools" in (tokenizer.chat_template or "")


def plain_messages(messages: Sequence[Message], template: str) -> list[dict[str, Any]]:
    """What templates expect: content as one text, ``developer`` as ``system``, tool arguments as objects."""
    plain = []
    for place, message in enumerate(messages):
        own = message.model_dump(exclude_none=True, include={"name", "tool_call_id", "reasoning_content"})
        role = "system" if message.role == "developer" and "developer" not in template else message.role
        own |= {"role": role, "content": _text(message, place)}
        if message.tool_calls:
            own["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.function.name, "arguments": _arguments(call.function.arguments)},
                }
                for call in message.tool_calls
            ]
        elif message.content is None and message.role != "assistant":
            raise invalid(f"messages[{place}] has no content: give text", f"messages[{place}].content")
        plain.append(own)
    return plain


def _text(message: Message, place: int) -> str:
    if not isinstance(message.content, list):
        return message.content or ""
    return "\n".join(_part(part, f"messages[{place}].content[{i}]") for i, part in enumerate(message.content))


def _part(part: ContentPart, where: str) -> str:
    if part.type not in ("text", "refusal"):
        raise invalid(f"{where} is of type {part.type!r}, and this server reads text only", where, "unsupported")
    text = part.text if part.type == "text" else part.refusal
    if text is None:
        raise invalid(f"{where} is of type {part.type}, but has none", where)
    return text


def _arguments(text: str) -> Any:
    """Templates write arguments with ``tojson``; those that are not JSON stay the text they are."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
