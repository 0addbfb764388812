"""A request for a response as the ``ChatRequest`` that all chat endpoints run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outrider_server.http.errors import invalid
from outrider_server.openai.schema import chat
from outrider_server.openai.schema.base import GenerationRequest, StreamOptions
from outrider_server.responses.schema import (
    FunctionTool,
    InputItem,
    NamedFunction,
    ResponsesPart,
    ResponsesRequest,
    ResponsesTool,
)

LOGPROBS = "message.output_text.logprobs"
_SAME_NAME = ("temperature", "top_p", "top_k", "min_p", "seed", "parallel_tool_calls", "tool_choice")


def chat_request(body: ResponsesRequest) -> chat.ChatRequest:
    """Raises ApiError for options that this server does not support."""
    _check(body)
    given: dict[str, Any] = {name: getattr(body, name) for name in (*GenerationRequest.model_fields, *_SAME_NAME)}
    given |= {"messages": _messages(body), "tools": _tools(body.tools), "max_tokens": body.max_output_tokens}
    if body.tool_choice == "auto" and not body.tools:
        given["tool_choice"] = None
    if isinstance(body.tool_choice, NamedFunction):
        given["tool_choice"] = chat.NamedTool(type="function", function=chat.NamedTool.Name(name=body.tool_choice.name))
    if LOGPROBS in (body.include or ()):
        given |= {"logprobs": True, "top_logprobs": body.top_logprobs}
    if body.stream_options is not None:
        given["stream_options"] = StreamOptions.model_construct()
    given["response_format"] = _form(body)
    given["reasoning_effort"] = body.reasoning.effort if body.reasoning else None
    return chat.ChatRequest.model_construct(**{name: value for name, value in given.items() if value is not None})


def _check(body: ResponsesRequest) -> None:
    for name in ("previous_response_id", "conversation", "prompt"):
        if getattr(body, name) is not None:
            message = f"{name} is not supported, as nothing is kept between requests: send the whole input"
            raise invalid(message, name, "unsupported")
    if body.store:
        raise invalid("store=true is not supported, as nothing is kept: send false", "store", "unsupported")
    if body.top_logprobs is not None and LOGPROBS not in (body.include or ()):
        raise invalid(f"top_logprobs needs include: add {LOGPROBS!r}", "top_logprobs")


def _form(body: ResponsesRequest) -> dict[str, Any] | None:
    form = body.text.format if body.text else None
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return {"type": "json_object"}
    if form.json_schema_ is None:
        raise invalid("text.format.schema is missing: give a schema", "text.format.schema")
    return {"type": "json_schema", "json_schema": {"schema": form.json_schema_}}


def _tools(given: Sequence[ResponsesTool] | None) -> list[chat.Tool] | None:
    """The functions. Tools that OpenAI runs are left out where there are functions: the model chooses among these."""
    tools, others = [], []
    for i, tool in enumerate(given or ()):
        if tool.type == "namespace":
            if tool.name is None:
                raise invalid(f"tools[{i}].name is missing: it is required", f"tools[{i}].name")
            inner = [_function(each, f"tools[{i}].tools[{j}]", tool.name) for j, each in enumerate(tool.tools or ())]
            tools += [each for each in inner if each is not None]
        elif (own := _function(tool, f"tools[{i}]")) is not None:
            tools.append(own)
        else:
            others.append(f"tools[{i}].type={tool.type!r}")
    if others and not tools:
        raise invalid(f"{others[0]} is not supported: only functions of the caller's own are", "tools", "unsupported")
    return tools or None


def _function(tool: FunctionTool, where: str, namespace: str | None = None) -> chat.Tool | None:
    if tool.type != "function":
        return None
    if tool.name is None:
        raise invalid(f"{where}.name is missing: it is required", f"{where}.name")
    function = chat.FunctionDefinition.model_construct(
        name=full_name(tool.name, namespace), description=tool.description, parameters=tool.parameters
    )
    return chat.Tool.model_construct(type="function", function=function)


def full_name(name: str, namespace: str | None) -> str:
    """The name of a function as the model is told of it: one of a namespace has that before it."""
    return name if namespace is None else f"{namespace}.{name}"


def namespaces(body: ResponsesRequest) -> dict[str, tuple[str, str]]:
    """(name, namespace) of the functions that have one, by the names that the model is told."""
    return {
        full_name(inner.name, tool.name): (inner.name, tool.name)
        for tool in body.tools or ()
        for inner in tool.tools or ()
        if inner.name is not None and tool.name is not None
    }


def _messages(body: ResponsesRequest) -> list[chat.Message]:
    """Instructions, then the input; calls and reasoning join the assistant's message that they belong to."""
    messages = [] if body.instructions is None else [_message("system", body.instructions)]
    items = body.input
    if isinstance(items, str):
        return [*messages, _message("user", items)]
    thoughts = ""
    for i, item in enumerate(items):
        where, kind = f"input[{i}]", item.type or "message"
        if kind == "reasoning":
            parts = item.content if isinstance(item.content, list) else item.summary
            thoughts += _text(parts or [], where)
        elif kind == "function_call_output":
            messages.append(_result(item, where))
        elif kind == "function_call":
            if not messages or messages[-1].role != "assistant":
                messages.append(_message("assistant", None))
            messages[-1].tool_calls = [*(messages[-1].tool_calls or ()), _call(item, where)]
        elif kind == "message" and item.role is not None:
            messages.append(_message(item.role, _content(item.content or "", f"{where}.content")))
        else:
            raise invalid(f"{where} is of type {kind!r}, which is not supported, or has no role", where, "unsupported")
        if thoughts and messages and messages[-1].role == "assistant":
            messages[-1].reasoning_content, thoughts = thoughts, ""
    if not messages:
        raise invalid("input is empty: give a text, or some items", "input")
    return messages


def _message(role: Any, content: str | list[chat.ContentPart] | None) -> chat.Message:
    return chat.Message.model_construct(role=role, content=content)


def _call(item: InputItem, where: str) -> chat.ToolCall:
    if item.name is None or item.call_id is None:
        raise invalid(f"{where} is a function_call without name or call_id: give both", where)
    function = chat.FunctionCall(name=full_name(item.name, item.namespace), arguments=item.arguments or "{}")
    return chat.ToolCall(id=item.call_id, function=function)


def _result(item: InputItem, where: str) -> chat.Message:
    if item.call_id is None or item.output is None:
        raise invalid(f"{where} is a function_call_output without call_id or output: give both", where)
    return chat.Message.model_construct(
        role="tool", tool_call_id=item.call_id, content=_text(item.output, f"{where}.output")
    )


def _content(given: str | Sequence[ResponsesPart], where: str) -> str | list[chat.ContentPart]:
    """One text, or a list of parts where there are images."""
    if isinstance(given, str) or all(part.type != "input_image" for part in given):
        return _text(given, where)
    parts = []
    for i, part in enumerate(given):
        if part.type == "input_image":
            if part.file_id is not None:
                raise invalid(f"{where}[{i}].file_id is not supported: send image_url", where, "unsupported")
            image = {"url": part.image_url, "detail": part.detail}
            parts.append(chat.ContentPart.model_construct(type="image_url", image_url=image))
        else:
            parts.append(chat.ContentPart.model_construct(type="text", text=_text([part], where)))
    return parts


def _text(given: str | Sequence[ResponsesPart], where: str) -> str:
    if isinstance(given, str):
        return given
    texts = []
    for i, part in enumerate(given):
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in ("input_text", "output_text", "refusal", "reasoning_text", "summary_text", "text"):
            own = f"{where}[{i}]"
            raise invalid(f"{own} is of type {part.type!r}, and this server reads text only", own, "unsupported")
        texts.append(text or "")
    return "\n".join(texts)
