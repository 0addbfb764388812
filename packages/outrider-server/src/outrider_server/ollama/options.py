"""Ollama's options as OpenAI's; options without support are refused by name."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from pydantic import ValidationError

from outrider_server.answer.switches import thinking_switch
from outrider_server.http.errors import ApiError, invalid
from outrider_server.ollama.schema import OllamaRequest, Options
from outrider_server.openai.schema import chat
from outrider_server.openai.schema.base import MAX_STOPS, GenerationRequest
from outrider_server.service import Service

DEFAULTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.0}
_STORED = ("stop", "num_predict", "seed", "presence_penalty", "frequency_penalty")
OFF: dict[str, Any] = {
    "typical_p": 1.0, "tfs_z": 1.0, "mirostat": 0, "penalize_newline": True, "logits_all": False,
    "embedding_only": False, "vocab_only": False,
}  # fmt: skip
"""Options that nothing here does, and the value that asks for nothing."""


def model_name(service: Service, name: str | None) -> str:
    """The name to answer under."""
    return service.check_model(plain_name(name, service.model_names))


def plain_name(name: str | None, served: Collection[str]) -> str | None:
    """Ollama's ``name:latest`` is ``name``, unless it is served as such; None for an empty one."""
    if name and name.endswith(":latest") and name not in served:
        name = name.removesuffix(":latest")
    return name or None


def check(options: Options, max_seq_len: int) -> None:
    """Raises ApiError for options that this server does not support."""
    for name, off in OFF.items():
        value = getattr(options, name)
        if value is not None and value != off:
            raise _unsupported(name, value, f"leave it out, or send {json.dumps(off)}")
    if options.repeat_last_n is not None and options.repeat_last_n != -1 and options.repeat_penalty not in (None, 1.0):
        raise _unsupported("repeat_last_n", options.repeat_last_n, "send -1, as penalties look at the whole text here")
    if options.num_predict == 0:
        raise invalid("options.num_predict=0 gives nothing: use at least 1, or -1", "options.num_predict")
    if options.num_ctx is not None and options.num_ctx > max_seq_len:
        name = "options.num_ctx"
        raise invalid(f"{name}={options.num_ctx} is more than the {max_seq_len} tokens of the context here", name)


def _unsupported(name: str, value: Any, remedy: str) -> ApiError:
    return invalid(f"options.{name}={str(value)[:40]} is not supported: {remedy}", f"options.{name}", "unsupported")


def chat_request(service: Service, body: OllamaRequest, messages: list[chat.Message], **more: Any) -> chat.ChatRequest:
    """The equivalent ``ChatRequest``. Raises ApiError for options that this server does not support."""
    options = body.options or Options.model_validate({})
    check(options, service.max_seq_len)
    options = Options.model_construct(**stored_options(service) | options.model_dump(exclude_none=True))
    system = service.stored.system
    if system is not None and not getattr(body, "raw", None) and all(own.role != "system" for own in messages):
        messages = [chat.Message.model_construct(role="system", content=system), *messages]
    given: dict[str, Any] = {name: getattr(body, name) for name in GenerationRequest.model_fields}
    given |= sampling(options)
    given |= {"model": model_name(service, body.model), "messages": messages, "stream": body.stream is not False}
    given |= {"logprobs": body.logprobs, "top_logprobs": body.top_logprobs} | more
    if body.format == "json":
        given["response_format"] = {"type": "json_object"}
    elif isinstance(body.format, dict):
        given["json_schema"] = body.format
    if isinstance(body.think, bool):
        given["chat_template_kwargs"] = thinking_switch(service.tokenizer.chat_template or "", body.think, "think")
    elif body.think is not None:
        given["reasoning_effort"] = body.think
    return chat.ChatRequest.model_construct(**{name: value for name, value in given.items() if value is not None})


def stored_options(service: Service) -> dict[str, Any]:
    """The parameters that Ollama's store gives for the model, of those that this server has; odd ones are left out."""
    given = {name: value for name, value in service.stored.params.items() if name in (*DEFAULTS, *_STORED)}
    if isinstance(given.get("stop"), list):
        given["stop"] = given["stop"][:MAX_STOPS]
    try:
        return Options.model_validate(given).model_dump(exclude_none=True)
    except ValidationError:
        return {}


def sampling(options: Options) -> dict[str, Any]:
    """The same under OpenAI's names, with Ollama's defaults."""
    given: dict[str, Any] = {
        name: default if (value := getattr(options, name)) is None else value for name, default in DEFAULTS.items()
    }
    for name in ("presence_penalty", "frequency_penalty", "stop"):
        given[name] = getattr(options, name)
    given["repetition_penalty"] = options.repeat_penalty
    given["seed"] = None if options.seed == -1 else options.seed
    if options.num_predict is not None and options.num_predict > 0:
        given["max_tokens"] = options.num_predict
    return given
