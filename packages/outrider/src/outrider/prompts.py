"""The prompts and options of one call of ``LLM.generate`` or ``LLM.chat``: one prompt, or several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

from outrider.errors import InvalidRequestError
from outrider.input_processor import Message, Prompt, is_conversation
from outrider.utils.json_files import shown


def resolve_alias(params: Any, sampling_params: Any) -> Any:
    """The value of ``params`` or of its alias ``sampling_params``. Raises ``InvalidRequestError`` if both are given."""
    if params is not None and sampling_params is not None:
        raise InvalidRequestError("params and sampling_params are the same option: give one of them", param="params")
    return sampling_params if params is None else params


def conversations(messages: object) -> list[Sequence[Message]] | None:
    """The conversations of a list of conversations; None if ``messages`` is a single conversation.

    Raises ``InvalidRequestError`` for anything else.
    """
    if is_conversation(messages):
        return None
    if isinstance(messages, Sequence) and not messages:
        raise InvalidRequestError(
            f"messages={messages!r} is empty: give at least one message, as in "
            '[{"role": "user", "content": "Hello"}]',
            param="messages",
        )
    items = messages if isinstance(messages, Sequence) and not isinstance(messages, str) else ()
    if items and all(map(is_conversation, items)):
        return list(items)
    neither = [i for i, item in enumerate(items) if not isinstance(item, Mapping) and not is_conversation(item)]
    value = f"messages[{neither[0]}]={shown(items[neither[0]])}" if neither else f"messages={shown(messages)}"
    raise InvalidRequestError(
        f"{value} is no conversation: give one list of messages with role and content, or a list of such lists",
        param="messages",
    )


def prompts_in(prompts: Any) -> list[Prompt] | None:
    """The prompts of a list; None if ``prompts`` is a single prompt. Raises ``InvalidRequestError`` for other types."""
    if isinstance(prompts, str | Mapping):
        return None
    if not isinstance(prompts, Iterable) or isinstance(prompts, bytes):
        raise InvalidRequestError(
            f"prompts={shown(prompts)} is no text: give a text, or a list of texts", param="prompts"
        )
    return list(prompts)


def broadcast_params(
    prompt: Any, several: Sequence[Any] | None, params: Any, speculation: Any
) -> list[tuple[Any, ...]]:
    """(prompt, params, speculation) of each of ``several`` prompts, or of ``prompt`` alone if ``several`` is None.

    Each option is one value for all prompts, or a list with one value per prompt; otherwise raises
    ``InvalidRequestError``.
    """
    if several is None:
        return [(prompt, _for_one(params, "params"), _for_one(speculation, "speculation"))]
    options = (_for_each(params, len(several), "params"), _for_each(speculation, len(several), "speculation"))
    return list(zip(several, *options, strict=True))


def _for_one(value: Any, name: str) -> Any:
    if _is_list(value):
        raise InvalidRequestError(f"one prompt came with a list of {name}: give one, or a list of prompts", param=name)
    return value


def _for_each(value: Any, count: int, name: str) -> list[Any]:
    if not _is_list(value):
        return [value] * count
    if len(value) != count:
        raise InvalidRequestError(f"{count} prompts came with {len(value)} {name}: give one, or one each", param=name)
    return list(value)


def _is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str)
