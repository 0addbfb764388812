"""Answers to chat requests, whole or put together from a stream, with every breach of the protocol noted."""

from __future__ import annotations

import json
import time
import urllib.error
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from outrider.errors import ConfigError
from outrider_lab.certify.client import ask, events, first_model, root

__all__ = ["Answer", "Call", "ChatClient"]

PATIENCE = 120.0  # seconds that a request is repeated while the server is busy


@dataclass(frozen=True)
class Call:
    """A tool call. Its id may differ between two equal answers."""

    name: str
    arguments: str
    id: str = field(default="", compare=False)


@dataclass(frozen=True)
class Answer:
    """One answer; two are equal if they say the same, byte for byte."""

    content: str = ""
    thinking: str = ""
    calls: tuple[Call, ...] = ()
    finish: str | None = None
    broken: tuple[str, ...] = field(default=(), compare=False)
    """Breaches of the protocol."""
    refused: str = ""
    """The server's reason to answer nothing (a status of 400 to 499)."""
    accepted: int | None = field(default=None, compare=False)
    """Accepted draft tokens; None: the server does not say."""

    @property
    def shown(self) -> str:
        """The answer as a line of JSON."""
        if self.refused:
            return f"refused: {self.refused}"
        calls = [[call.name, call.arguments] for call in self.calls]
        said = {"thinking": self.thinking, "content": self.content, "calls": calls, "finish": self.finish}
        return json.dumps({key: value for key, value in said.items() if value}, ensure_ascii=False)


@dataclass(frozen=True)
class ChatClient:
    """The chat completions at ``url`` (with or without /v1)."""

    url: str
    model: str

    @classmethod
    def of(cls, url: str, model: str | None) -> ChatClient:
        """``model``: None for the first that the server lists."""
        return cls(url, model or first_model(url))

    def whole(self, body: Mapping[str, Any]) -> Answer:
        """An answer in one piece. A server that is busy (429, 503) is asked again, for a while."""
        return _patient(lambda: self._whole({"model": self.model, **body}))

    def streamed(self, body: Mapping[str, Any]) -> Answer:
        """An answer that is put together from its events; as ``whole`` otherwise."""
        given = {"model": self.model, **body, "stream": True, "stream_options": {"include_usage": True}}
        return _patient(lambda: self._streamed(given))

    def _whole(self, body: dict[str, Any]) -> Answer:
        found = ask(f"{root(self.url)}/chat/completions", body)
        try:
            return _from_message(found)
        except (LookupError, TypeError, AttributeError, ValueError):
            return Answer(broken=(f"no answer of the chat API: {str(found)[:200]}",))

    def _streamed(self, body: dict[str, Any]) -> Answer:
        joined = _Joined()
        try:
            for data in events(f"{root(self.url)}/chat/completions", body):
                joined.push(data)
        except urllib.error.HTTPError as error:
            reason = error.read(300).decode(errors="replace")
            raise ConfigError(f"{self.url} answered {error.code}: {reason}") from None
        except (OSError, LookupError, TypeError, AttributeError, ValueError) as error:
            joined.broken.append(f"the stream cannot be read: {error!r:.200}")
        return joined.answer()

    def turns_drafts_off(self) -> bool:
        """Whether a request may ask for plain decoding: whether ``speculation`` is read, so that nonsense is refused.

        Raises ConfigError if the server cannot answer at all.
        """
        body = {"model": self.model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
        ask(f"{root(self.url)}/chat/completions", body)
        try:
            ask(f"{root(self.url)}/chat/completions", body | {"speculation": "no-such-word"})
        except ConfigError as error:
            return _is_refusal(error)
        return False


def _patient(send: Callable[[], Answer]) -> Answer:
    """The answer; where there is none, the refusal or the failure in its place."""
    deadline, pause = time.monotonic() + PATIENCE, 0.05
    while True:
        try:
            return send()
        except ConfigError as error:
            if not _has_status(error, "429", "503") or time.monotonic() > deadline:
                return Answer(refused=str(error)) if _is_refusal(error) else Answer(broken=(str(error),))
        time.sleep(pause)
        pause = min(2 * pause, 1.0)


def _has_status(error: ConfigError, *statuses: str) -> bool:
    return any(f" answered {status}" in str(error) for status in statuses)


def _is_refusal(error: ConfigError) -> bool:
    return _has_status(error, "4") and not _has_status(error, "408", "429")


def _from_message(found: Any) -> Answer:
    choice = found["choices"][0]
    message = choice["message"]
    calls = tuple(
        Call(each["function"]["name"], each["function"]["arguments"], each.get("id") or "")
        for each in message.get("tool_calls") or ()
    )
    return Answer(
        message.get("content") or "", _thinking(message), calls, choice.get("finish_reason"),
        accepted=_accepted(found),
    )  # fmt: skip


def _thinking(message: Mapping[str, Any]) -> str:
    return message.get("reasoning_content") or message.get("reasoning") or ""


def _accepted(found: Mapping[str, Any]) -> int | None:
    """Accepted draft tokens, in the words of Outrider, llama.cpp or OpenAI."""
    for value in (
        ((found.get("metrics") or {}).get("speculative_decoding") or {}).get("num_accepted_draft_tokens"),
        (found.get("timings") or {}).get("draft_n_accepted"),
        ((found.get("usage") or {}).get("completion_tokens_details") or {}).get("accepted_prediction_tokens"),
    ):
        if value is not None:
            return int(value)
    return None


class _Joined:
    """Puts a stream together."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        self._content = self._thinking = ""
        self._calls: list[dict[str, str]] = []
        self._finish: str | None = None
        self._done = False
        self._accepted: int | None = None

    def push(self, data: str) -> None:
        """Take one event's data."""
        if self._done:
            self.broken.append("an event follows [DONE]")
        if data == "[DONE]":
            self._done = True
            return
        event = json.loads(data)
        if "error" in event:
            self.broken.append(f"an error within the stream: {str(event['error'])[:200]}")
        found = _accepted(event)
        self._accepted = self._accepted if found is None else found
        for choice in event.get("choices") or ():
            self._push_delta(choice.get("delta") or {})
            self._finish = choice.get("finish_reason") or self._finish

    def _push_delta(self, delta: Mapping[str, Any]) -> None:
        text, thought = delta.get("content") or "", _thinking(delta)
        calls = delta.get("tool_calls") or ()
        if self._finish is not None and (text or thought or calls):
            self.broken.append("text or a call follows the finish reason")
        self._content += text
        self._thinking += thought
        for each in calls:
            self._push_call(each)

    def _push_call(self, each: Mapping[str, Any]) -> None:
        index, function = each.get("index", len(self._calls)), each.get("function") or {}
        if index == len(self._calls):
            self._calls.append({"id": "", "name": "", "arguments": ""})
            if not each.get("id") or not function.get("name"):
                self.broken.append(f"the first delta of call {index} has no id or no name")
        elif not 0 <= index < len(self._calls):
            raise ValueError(f"a delta of call {index}, where {len(self._calls)} have begun")
        call = self._calls[index]
        for key, value in (("id", each.get("id")), ("name", function.get("name"))):
            if value and call[key] and value != call[key]:
                self.broken.append(f"call {index} changes its {key} from {call[key]!r} to {value!r}")
            call[key] = call[key] or value or ""
        call["arguments"] += function.get("arguments") or ""

    def answer(self) -> Answer:
        """The whole, at the stream's end."""
        if not self._done:
            self.broken.append("the stream ends without [DONE]")
        calls = tuple(Call(each["name"], each["arguments"], each["id"]) for each in self._calls)
        broken = tuple(dict.fromkeys(self.broken))
        return Answer(self._content, self._thinking, calls, self._finish, broken, accepted=self._accepted)
