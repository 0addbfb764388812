"""Chat templates: Jinja text that comes with a model, rendered in a sandbox exactly as transformers renders it."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from outrider.errors import InvalidRequestError, ModelFormatError
from outrider.utils.child import ChildError, Children
from outrider.utils.json_files import read_json_object

DEADLINE = 5.0  # seconds for one conversation; ordinary ones take a tenth of a millisecond
MEMORY_LIMIT = 1 << 30  # bytes of address space
MAX_CHARACTERS = 32 << 20

_PROBE = "a probe"

_CHILDREN = Children(
    "outrider.tokenizer.template_child:serve",
    None,
    count=2,
    memory=MEMORY_LIMIT,
    deadline=DEADLINE,
    name="renders chat templates",
)


def find_template(folder: Path, configured: object) -> str | None:
    """The template of a model folder: ``chat_template.jinja``, else that of ``tokenizer_config.json``.

    Between the two comes ``chat_template.json``, where older models of images or sounds have it. A template is one
    text, or a list of named texts, of which ``default`` is taken. None: the folder has no template.
    """
    file, older = folder / "chat_template.jinja", folder / "chat_template.json"
    if not file.exists() and older.exists() and (folder / "preprocessor_config.json").exists():
        configured = read_json_object(older).get("chat_template", configured)
    if file.exists():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ModelFormatError(f"{file} cannot be read ({error}): download the model again") from None
    if isinstance(configured, list):
        named = {entry.get("name"): entry.get("template") for entry in configured if isinstance(entry, dict)}
        configured = named.get("default")
    return configured if isinstance(configured, str) else None


@dataclass(frozen=True)
class Rendered:
    """A conversation as text. ``pieces``: see ``provenance``; None if all control tokens are the template's own."""

    text: str
    pieces: Sequence[str] | None = None

    def until(self, end: int) -> Rendered:
        """The first ``end`` characters."""
        if self.pieces is None:
            return Rendered(self.text[:end])
        ends = itertools.accumulate(map(len, self.pieces))
        pieces = [piece[: max(0, len(piece) + end - own_end)] for piece, own_end in zip(self.pieces, ends, strict=True)]
        return Rendered(self.text[:end], pieces)


class ChatTemplate:
    """A compiled template and the special tokens it may mention.

    It runs in another process, with limits: this costs about 0.1 ms for each conversation, and nothing can hang.

    Raises ``ModelFormatError`` on construction if the template does not parse.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], controls: Sequence[str] = ()) -> None:
        """``controls``: the spellings of all control tokens."""
        self._setup = {"source": source, "special_tokens": dict(special_tokens), "controls": list(controls)}
        self._name = hashlib.sha256(json.dumps(self._setup).encode()).hexdigest()
        try:
            reply = _CHILDREN.ask({"name": self._name} | self._setup)
        except ChildError as error:
            reply = {"unparsable": f"it {error}"}
        if "unparsable" in reply:
            message = f"the model's chat template does not parse ({reply['unparsable']}): use a plain prompt"
            raise ModelFormatError(message)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        variables: Mapping[str, Any] | None = None,
        limit: int = MAX_CHARACTERS,
        read_arguments: bool = False,
    ) -> Rendered:
        """The prompt for ``messages``, of at most ``limit`` characters.

        Contents are texts, or lists of parts: ``{"type": "text", "text": ...}`` and ``{"type": "image"}``.
        ``read_arguments``: the arguments of ``tool_calls`` are JSON texts, which the template's process parses.

        Raises ``InvalidRequestError`` with the template's own words if it refuses.
        """
        own = [_in_parts(m) if self._reads_parts_alone else dict(m) for m in messages]
        for message in own:
            if message.get("tool_calls") and message.get("content") == "" and self._calls_need_null:
                message["content"] = None
        context = {**(variables or {}), "messages": own, "add_generation_prompt": add_generation_prompt}
        return self._render(context, limit, read_arguments=read_arguments)

    @cached_property
    def _reads_parts_alone(self) -> bool:
        """Whether the template leaves out contents that are one text, and writes lists of parts only."""
        if "type" not in self._setup["source"]:
            return False
        text: dict[str, Any] = {"role": "user", "content": _PROBE}
        return not self._writes(text) and self._writes(_in_parts(text))

    @cached_property
    def _calls_need_null(self) -> bool:
        """Whether the template leaves out the tool calls of a message with a content, even of one with an empty one."""
        if "tool_calls" not in self._setup["source"]:
            return False
        call = {"id": "abcdefghi", "type": "function", "function": {"name": _PROBE, "arguments": "{}"}}
        user, turn = {"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}
        return not self._writes(user, turn | {"content": ""}) and self._writes(user, turn | {"content": None})

    def _writes(self, *messages: dict[str, Any]) -> bool:
        context = {"messages": list(messages), "add_generation_prompt": True}
        try:
            return _PROBE in self._render(context, read_arguments=True).text
        except InvalidRequestError:
            return False

    def _render(
        self, context: dict[str, Any], limit: int = MAX_CHARACTERS, *, read_arguments: bool = False
    ) -> Rendered:
        request = {"name": self._name, "context": context, "limit": limit, "read_arguments": read_arguments}
        try:
            reply = _CHILDREN.ask(request)
            if "unknown" in reply:
                reply = _CHILDREN.ask(request | self._setup)
        except ChildError as error:
            raise _refused(f"it {error}") from None
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequestError(f"these messages are not JSON ({error}): give text", param="messages") from None
        if "refused" in reply:
            raise _refused(reply["refused"])
        return Rendered(reply["text"], reply["pieces"])


def _in_parts(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with its content as a list of parts."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    return {**message, "content": parts}


def _refused(reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"the chat template refuses these messages: {reason}", param="messages")
