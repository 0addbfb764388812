"""A request in Anthropic's words as the ``ChatRequest`` that all chat endpoints run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from outrider_server.answer.switches import effort_variables, thinking_switch
from outrider_server.anthropic.schema import (
    AnthropicMessage,
    AnthropicTool,
    ContentBlock,
    MessagesRequest,
    PromptRequest,
    TextBlock,
)
from outrider_server.http.errors import ApiError, invalid
from outrider_server.openai.schema import chat
from outrider_server.openai.schema.base import GenerationRequest

NO_THREADS = "thread_unsupported_request"
"""The code upon which Anthropic's clients go on without a thread."""
_SAME_NAME = ("temperature", "top_p", "top_k", "min_p", "seed", "stream", "max_tokens")


def chat_request(body: PromptRequest, template: str) -> chat.ChatRequest:
    """``template``: the model's chat template. Raises ApiError for fields that this server does not support."""
    messages = [*_system(body.system), *(m for i, own in enumerate(body.messages) for m in _message(own, i))]
    given: dict[str, Any] = {name: getattr(body, name, None) for name in GenerationRequest.model_fields}
    given |= {"messages": messages, "tools": _tools(body.tools), "tool_choice": _tool_choice(body)}
    given["chat_template_kwargs"] = _thinking(body, template)
    if body.tool_choice is not None and body.tool_choice.disable_parallel_tool_use:
        given["parallel_tool_calls"] = False
    config = body.output_config
    if config is not None and config.format is not None:
        given["json_schema"] = config.format.json_schema_
    if config is not None and config.effort is not None:
        given["reasoning_effort"] = _effort({"max": "xhigh"}.get(config.effort, config.effort), template)
    if isinstance(body, MessagesRequest):
        if body.thread is not None:
            raise invalid("thread is not supported, as nothing is kept: send the messages", "thread", NO_THREADS)
        given |= {name: getattr(body, name) for name in _SAME_NAME}
        given["stop"] = body.stop_sequences
    if body.messages[-1].role == "assistant":
        given["continue_final_message"] = True
    return chat.ChatRequest.model_construct(**{name: value for name, value in given.items() if value is not None})


def _system(given: str | Sequence[TextBlock] | None) -> Iterator[chat.Message]:
    if isinstance(given, list):  # what Claude Code tells Anthropic of itself differs from call to call
        given = [block for block in given if not (block.text or "").startswith("x-anthropic-billing-header:")]
    if given:
        yield chat.Message.model_construct(role="system", content=_text(given, "system"))


def _effort(wanted: str, template: str) -> str | None:
    """The effort where the model can be told of it: it is a hint, and agents send one to every model."""
    try:
        effort_variables(template, wanted)
    except ApiError:
        return None
    return wanted


def _message(message: AnthropicMessage, place: int) -> Iterator[chat.Message]:
    """A message; results of tools, which Anthropic puts into the user's, before it as messages of their own."""
    where = f"messages[{place}].content"
    if isinstance(message.content, str):
        yield chat.Message.model_construct(role=message.role, content=message.content)
        return
    parts: list[chat.ContentPart] = []
    thoughts: list[str] = []
    calls: list[chat.ToolCall] = []
    for i, block in enumerate(message.content):
        own = f"{where}[{i}]"
        if block.type == "tool_result":
            yield _result(block, own)
        elif block.type == "tool_use":
            calls.append(_call(block, own))
        elif block.type == "thinking":
            thoughts.append(block.thinking or "")
        elif block.type == "image":
            parts.append(_image(block, own))
        elif block.type != "redacted_thinking":
            parts.append(chat.ContentPart.model_construct(type="text", text=_text([block], own)))
    if parts or calls or message.role == "assistant":
        yield chat.Message.model_construct(
            role=message.role,
            content=_joined(parts),
            reasoning_content="\n".join(thoughts) or None,
            tool_calls=calls or None,
        )


def _joined(parts: list[chat.ContentPart]) -> str | list[chat.ContentPart] | None:
    """One text, unless there are images."""
    if any(part.type == "image_url" for part in parts):
        return parts
    return "\n".join(part.text or "" for part in parts) if parts else None


def _image(block: ContentBlock, where: str) -> chat.ContentPart:
    source = block.source
    if not isinstance(source, dict) or source.get("type") != "base64" or not isinstance(source.get("data"), str):
        message = f"{where} is an image that is not in base64, and images are not fetched: send source.type 'base64'"
        raise invalid(message, f"{where}.source", "unsupported")
    url = f"data:{str(source.get('media_type', 'image/png'))[:64]};base64,{source['data']}"
    return chat.ContentPart.model_construct(type="image_url", image_url={"url": url})


def _call(block: ContentBlock, where: str) -> chat.ToolCall:
    if block.id is None or block.name is None:
        raise invalid(f"{where} is a tool_use without id or name: give both", where)
    function = chat.FunctionCall(name=block.name, arguments=json.dumps(block.input or {}, ensure_ascii=False))
    return chat.ToolCall(id=block.id, function=function)


def _result(block: ContentBlock, where: str) -> chat.Message:
    if block.tool_use_id is None:
        raise invalid(f"{where} is a tool_result without tool_use_id: give it", where)
    content = _text(block.content or "", f"{where}.content")
    return chat.Message.model_construct(role="tool", tool_call_id=block.tool_use_id, content=content)


def _text(given: str | Sequence[TextBlock], where: str) -> str:
    if isinstance(given, str):
        return given
    texts = []
    for block in given:
        if block.type != "text":
            raise invalid(f"{where} is of type {block.type!r}, and this server reads text only", where, "unsupported")
        if block.text is None:
            raise invalid(f"{where} is of type text, but has none", where)
        texts.append(block.text)
    return "\n".join(texts)


def _tools(given: Sequence[AnthropicTool] | None) -> list[chat.Tool] | None:
    tools = []
    for i, tool in enumerate(given or ()):
        if tool.type not in (None, "custom"):
            raise invalid(f"tools[{i}].type={tool.type!r} is not supported: only the caller's own tools are", "tools")
        if tool.input_schema is None:
            raise invalid(f"tools[{i}].input_schema is missing: it is required", "tools")
        function = chat.FunctionDefinition.model_construct(
            name=tool.name, description=tool.description, parameters=tool.input_schema
        )
        tools.append(chat.Tool.model_construct(type="function", function=function))
    return tools or None


def _tool_choice(body: PromptRequest) -> Any:
    choice = body.tool_choice
    if choice is None:
        return None
    if choice.type != "tool":
        return {"any": "required", "auto": "auto" if body.tools else None, "none": "none"}[choice.type]
    if choice.name is None:
        raise invalid("tool_choice.name is missing: name the tool", "tool_choice.name")
    return chat.NamedTool(type="function", function=chat.NamedTool.Name(name=choice.name))


def _thinking(body: PromptRequest, template: str) -> dict[str, Any] | None:
    thinking = body.thinking
    if thinking is None or thinking.type == "adaptive":
        return None
    if thinking.budget_tokens is not None:
        message = f"thinking.budget_tokens={thinking.budget_tokens} is not supported: send the type 'adaptive'"
        raise invalid(message, "thinking.budget_tokens", "unsupported")
    return thinking_switch(template, thinking.type == "enabled", "thinking")
