"""One of two sides that are compared: a server, with the fields that all its requests have."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from outrider.errors import ConfigError
from outrider_lab.certify.client import RefusedError, ask, events, first_model, root
from outrider_lab.referee.logprobs import token_ids

__all__ = ["Reply", "Side", "make_sides"]


@dataclass(frozen=True)
class Reply:
    """An answer to one request. Seconds are measured here."""

    text: str
    seconds: float = 0.0
    first_s: float | None = None
    """Until the first text, of a streamed answer."""
    tokens: int | None = None
    """Tokens made, if the server counts them."""
    ids: tuple[int, ...] = ()
    """The tokens' ids, if asked for and given."""
    refused: str = ""
    """The server's words, if it refused the request."""
    broken: bool = False
    """Whether it refused because it failed (500 and more)."""

    @property
    def said(self) -> tuple[str, bool]:
        """The part that two equal answers share."""
        return self.text, bool(self.refused)


@dataclass(frozen=True)
class Side:
    """The completions API at ``url`` (with or without /v1)."""

    name: str
    url: str
    model: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Of every request, as {"speculation": "off"}."""

    def _body(self, options: Mapping[str, Any]) -> dict[str, Any]:
        return {"model": self.model, **options, **self.fields}

    def choices(self, options: Mapping[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """All choices of a completion, and the whole answer.

        Raises:
            RefusedError: the server refuses this request.
            ConfigError: another answer, or none.
        """
        answer = ask(f"{root(self.url)}/completions", self._body(options))
        try:
            choices: list[dict[str, Any]] = answer["choices"]
            if not choices or not all(isinstance(choice["text"], str) for choice in choices):
                raise TypeError
        except (KeyError, TypeError):
            raise ConfigError(
                f"{self.url} does not answer like an OpenAI completions server: {answer!r:.200}"
            ) from None
        return choices, answer

    def complete(self, options: Mapping[str, Any]) -> Reply:
        """A whole answer. Raises ConfigError as ``choices``, but keeps a refusal as the reply."""
        began = time.perf_counter()
        try:
            choices, answer = self.choices(options)
        except RefusedError as error:
            return Reply("", refused=str(error), broken=error.code >= 500)
        seconds = time.perf_counter() - began
        usage = answer.get("usage") or {}
        return Reply(
            choices[0]["text"],
            seconds,
            tokens=usage.get("completion_tokens"),
            ids=token_ids(choices[0]),
        )

    def stream(self, options: Mapping[str, Any]) -> Reply:
        """A streamed answer, put together. A server that cannot stream is a refusal."""
        began = time.perf_counter()
        first: float | None = None
        texts: list[str] = []
        try:
            for data in events(f"{root(self.url)}/completions", self._body({**options, "stream": True})):
                if data == "[DONE]":
                    break
                for choice in json.loads(data).get("choices", ()):
                    texts.append(choice.get("text") or "")
                    first = first or time.perf_counter() - began
        except (OSError, ValueError, AttributeError) as error:
            return Reply("", refused=f"{self.url} does not stream: {error}")
        if first is None:
            return Reply("", refused=f"{self.url} sends no events")
        return Reply("".join(texts), time.perf_counter() - began, first)

    def at_once(self, requests: Sequence[Mapping[str, Any]]) -> list[Reply]:
        """The answers to requests that are sent at the same time."""
        if len(requests) == 1:
            return [self.complete(requests[0])]
        with ThreadPoolExecutor(len(requests)) as pool:
            return list(pool.map(self.complete, requests))

    def turns_drafts_off(self) -> bool:
        """Whether the server knows requests without drafts, and refuses a wrong word for them."""
        probe = {"prompt": "a", "max_tokens": 1, "temperature": 0}
        try:
            self.choices({**probe, "speculation": "off"})
        except RefusedError:
            return False
        try:
            self.choices({**probe, "speculation": "no such word"})
        except RefusedError:
            return True  # a server that ignores the field would have answered
        return False


def make_sides(endpoint: str, baseline: str | None, model: str | None) -> tuple[Side, Side]:
    """The side with drafts and the side without.

    Without ``baseline``: one server, whose requests turn drafts off; if it knows no such requests, it is compared with
    itself, and only its steadiness is tested.
    """
    ours = Side("endpoint", endpoint, model or first_model(endpoint))
    if baseline is not None:
        return ours, Side("baseline", baseline, model or first_model(baseline))
    if ours.turns_drafts_off():
        return ours, Side("baseline", endpoint, ours.model, {"speculation": "off"})
    return ours, Side("baseline", endpoint, ours.model)
