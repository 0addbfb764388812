"""Chat completions: what a call asks for, and completions as llama-cpp-python's dictionaries of chats."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from outrider.errors import InvalidRequestError
from outrider_llama.llama_grammar import LlamaGrammar
from outrider_llama.llama_types import (
    ChatCompletionLogprobs,
    CompletionLogprobs,
    CreateChatCompletionResponse,
    CreateChatCompletionStreamResponse,
    CreateCompletionResponse,
)

Tool = Mapping[str, Any]


def tools_of(functions: Sequence[Any] | None, tools: Sequence[Tool] | None) -> Sequence[Tool] | None:
    """The tools of a call, with the older ``functions`` as tools."""
    return tools if functions is None else [{"type": "function", "function": function} for function in functions]


def choice_of(function_call: Any, tool_choice: Any) -> Any:
    """The choice of a call, with the older ``function_call`` as one."""
    if isinstance(function_call, Mapping):
        return {"type": "function", "function": {"name": function_call["name"]}}
    return tool_choice if function_call is None else function_call


def chosen_tool(tools: Sequence[Tool] | None, choice: Any) -> Tool | None:
    """The tool that the answer must call; None: the model answers as it likes.

    Raises ``InvalidRequestError`` if there is no such tool, or the choice is "required", which leaves several open.
    """
    if choice in (None, "none", "auto"):
        return None
    if not isinstance(choice, Mapping):
        raise InvalidRequestError(
            f"tool_choice={choice!r} cannot be used: name the function, as "
            '{"type": "function", "function": {"name": ...}}, or use "auto"',
            param="tool_choice",
        )
    name = choice["function"]["name"]
    tool = next((tool for tool in tools or () if tool["function"]["name"] == name), None)
    if tool is None:
        raise InvalidRequestError(f"Tool choice {name!r} not found in tools: add it to them", param="tool_choice")
    return tool


def grammar_of(response_format: Any, tool: Tool | None, grammar: LlamaGrammar | None) -> LlamaGrammar | None:
    """The grammar of an answer: of the tool's arguments, else of ``response_format``, else the caller's own.

    Raises ``InvalidRequestError`` for a format that is not known.
    """
    if tool is not None:
        return LlamaGrammar.from_json_schema(json.dumps(tool["function"]["parameters"]))
    if response_format is None or response_format.get("type") == "text":
        return grammar
    if response_format.get("type") != "json_object":
        raise InvalidRequestError(
            f"response_format={response_format!r} cannot be used: "
            'use {"type": "json_object", "schema": ...} or {"type": "text"}',
            param="response_format",
        )
    schema = response_format.get("schema")
    return LlamaGrammar.any_json() if schema is None else LlamaGrammar.from_json_schema(json.dumps(schema))


def chat_logprobs(found: CompletionLogprobs | None) -> ChatCompletionLogprobs | None:
    """Log-probabilities of a completion in the form of chats."""
    if found is None:
        return None
    rows = zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True)
    return {
        "content": [
            {
                "token": token,
                "bytes": None,
                "logprob": logprob,
                "top_logprobs": [{"token": t, "logprob": value, "bytes": None} for t, value in (best or {}).items()],
            }
            for token, logprob, best in rows
        ],
        "refusal": None,
    }


def as_chat(completion: CreateCompletionResponse, tool: Tool | None) -> CreateChatCompletionResponse:
    """A whole completion as an answer; of ``tool``, as a call whose arguments are the text."""
    choice = completion["choices"][0]
    message: Any = {"role": "assistant", "content": choice["text"]}
    finish_reason: str | None = choice["finish_reason"]
    if tool is not None:
        name, call = tool["function"]["name"], {"name": tool["function"]["name"], "arguments": choice["text"]}
        one = {"id": _call_id(name, completion["id"]), "type": "function", "function": dict(call)}
        message |= {"content": None, "function_call": call, "tool_calls": [one]}
        finish_reason = "tool_calls"
    return {
        "id": "chat" + completion["id"],
        "object": "chat.completion",
        "created": completion["created"],
        "model": completion["model"],
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": chat_logprobs(choice["logprobs"]),
                "finish_reason": finish_reason,
            }
        ],
        "usage": completion["usage"],
    }


def chat_chunks(chunks: Iterator[CreateCompletionResponse]) -> Iterator[CreateChatCompletionStreamResponse]:
    """The role, then the texts of ``chunks``, then an empty one with the reason of the end."""
    for place, chunk in enumerate(chunks):
        choice = chunk["choices"][0]
        if place == 0:
            yield _chunk(chunk, {"role": "assistant"}, None, None)
        delta = {"content": choice["text"]} if choice["finish_reason"] is None else {}
        yield _chunk(chunk, delta, chat_logprobs(choice["logprobs"]), choice["finish_reason"])


def tool_chunks(chunks: Iterator[CreateCompletionResponse], tool: Tool) -> Iterator[CreateChatCompletionStreamResponse]:
    """As ``chat_chunks``, with the texts as parts of the arguments of a call of ``tool``."""
    name, nothing = tool["function"]["name"], {"content": None, "function_call": None, "tool_calls": None}
    for place, chunk in enumerate(chunks):
        choice = chunk["choices"][0]
        if place == 0:
            yield _chunk(chunk, {"role": "assistant", **nothing}, None, None)
        call = {"name": name, "arguments": choice["text"]}
        one = {"index": 0, "id": _call_id(name, chunk["id"]), "type": "function", "function": dict(call)}
        delta = {"role": None, "content": None, "function_call": call, "tool_calls": [one]}
        yield _chunk(chunk, delta, chat_logprobs(choice["logprobs"]), None)
    yield _chunk(chunk, {"role": None, **nothing}, None, "tool_calls")


def _call_id(name: str, completion: str) -> str:
    return f"call__0_{name}_{completion}"


def _chunk(
    chunk: CreateCompletionResponse,
    delta: dict[str, Any],
    logprobs: ChatCompletionLogprobs | None,
    finish_reason: str | None,
) -> CreateChatCompletionStreamResponse:
    return {
        "id": "chat" + chunk["id"],
        "object": "chat.completion.chunk",
        "created": chunk["created"],
        "model": chunk["model"],
        "choices": [{"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}],
    }
