"""Chat messages as the model's template takes them, and as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

from outrider.tokenizer.chat_template import Rendered
from outrider.tokenizer.tokenizer import Tokenizer
from outrider_multimodal.vision import ImagePrompt
from outrider_server.answer.formats import THINKING
from outrider_server.http.body_limits import check_texts
from outrider_server.http.errors import invalid
from outrider_server.offloop import Run
from outrider_server.openai.images import image_file
from outrider_server.openai.schema.chat import ContentPart, Message, Tool
from outrider_server.service import Service

RESERVED = {"messages", "tools", "add_generation_prompt", "documents"}


class Conversation(Protocol):
    """The fields that a prompt is made of."""

    messages: list[Message] | None
    tools: list[Tool] | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None
    chat_template_kwargs: dict[str, Any] | None


def encode_messages(service: Service, body: Any, *, tools: bool = True) -> list[int]:
    """The prompt of a ``Conversation`` as ids, with those that images take."""
    return service.read(chat_prompt(service, body, tools=tools)).token_ids


def chat_prompt(service: Service, body: Any, *, tools: bool = True) -> list[int] | ImagePrompt:
    """The prompt of a ``Conversation``; ``tools=False`` leaves its tools unmentioned."""
    rendered, images = _rendered(service, body, tools)
    ids = service.tokenizer.encode_rendered(rendered, parse_special=bool(body.parse_special))
    return {"prompt_token_ids": ids, "multi_modal_data": {"image": images}} if images else ids


def render_messages(service: Service, body: Any) -> Rendered:
    """The prompt of a ``Conversation`` as text."""
    return _rendered(service, body, True)[0]


def _rendered(service: Service, body: Any, tools: bool) -> tuple[Rendered, list[bytes]]:
    """The prompt as text, and the files of its images."""
    tokenizer, conversation = service.tokenizer, cast(Conversation, body)
    check_arguments(conversation.messages or [], service.max_seq_len)
    images: list[bytes] | None = [] if service.engine.llm.sees else None
    messages = plain_messages(conversation.messages or [], tokenizer.chat_template or "", images)
    variables = _variables(tokenizer, conversation, tools)
    opened = conversation.add_generation_prompt is not False
    if conversation.continue_final_message:
        if conversation.add_generation_prompt:
            raise invalid("add_generation_prompt contradicts continue_final_message: give one", "add_generation_prompt")
        last = messages[-1].get("content")
        if messages[-1]["role"] != "assistant" or not last or not isinstance(last, str):
            raise invalid("continue_final_message needs an assistant message at the end", "messages")
        opened = False
    rendered = tokenizer.template.render(
        messages,
        add_generation_prompt=opened,
        variables=variables,
        limit=service.max_characters,
        read_arguments=True,
    )
    if conversation.continue_final_message:
        rendered = _open_ended(rendered, messages[-1]["content"])
    return rendered, images or []


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


def plain_messages(messages: Sequence[Message], template: str, images: list[bytes] | None) -> list[dict[str, Any]]:
    """What templates expect: ``developer`` as ``system``, content as one text.

    Where there are images, content is a list of parts, and the files are added to ``images``; None: none are taken.
    """
    plain = []
    for place, message in enumerate(messages):
        own = message.model_dump(exclude_none=True, include={"name", "tool_call_id", "reasoning_content"})
        role = "system" if message.role == "developer" and "developer" not in template else message.role
        own |= {"role": role, "content": _content(message, f"messages[{place}].content", images)}
        if message.tool_calls:
            own["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.function.name, "arguments": call.function.arguments},
                }
                for call in message.tool_calls
            ]
        elif message.content is None and message.role != "assistant":
            raise invalid(f"messages[{place}] has no content: give text", f"messages[{place}].content")
        plain.append(own)
    return plain


def check_arguments(messages: Sequence[Message], max_seq_len: int) -> None:
    """Raises ApiError 413 where the arguments of calls hold more values together than a body may."""
    texts = [call.function.arguments for message in messages for call in message.tool_calls or ()]
    check_texts(texts, "the arguments of tool_calls", max_seq_len)


def _content(message: Message, where: str, images: list[bytes] | None) -> str | list[dict[str, str]]:
    if not isinstance(message.content, list):
        return message.content or ""
    if images is None or not shows_image(message):
        return "\n".join(_part(part, f"{where}[{i}]") for i, part in enumerate(message.content))
    parts: list[dict[str, str]] = []
    for i, part in enumerate(message.content):
        if part.type == "image_url":
            images.append(image_file(part.image_url, f"{where}[{i}].image_url"))
            parts.append({"type": "image"})
        else:
            parts.append({"type": "text", "text": _part(part, f"{where}[{i}]")})
    return parts


def reading_lane(service: Service, messages: Sequence[Message] | None) -> Run:
    """Where a conversation is read: those with images have a lane of their own."""
    return service.off_loop.read_images if any(map(shows_image, messages or ())) else service.off_loop.run


def shows_image(message: Message) -> bool:
    """Whether a message has a part that is an image."""
    return isinstance(message.content, list) and any(part.type == "image_url" for part in message.content)


def _part(part: ContentPart, where: str) -> str:
    if part.type not in ("text", "refusal"):
        raise invalid(f"{where} is of type {part.type!r}, and this server reads text only", where, "unsupported")
    text = part.text if part.type == "text" else part.refusal
    if text is None:
        raise invalid(f"{where} is of type {part.type}, but has none", where)
    return text
