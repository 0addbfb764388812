"""A client of OpenAI-compatible servers, without a dependency."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from outrider.errors import ConfigError

__all__ = ["RefusedError", "ask", "events", "first_model", "root"]

TIMEOUT = 600.0


class RefusedError(ConfigError):
    """The server answers the request with an error: ``code`` 400 and more."""

    def __init__(self, text: str, code: int = 400) -> None:
        super().__init__(text)
        self.code = code


def first_model(url: str) -> str:
    """The first model that a server lists. Raises ConfigError if it lists none."""
    answer = ask(f"{root(url)}/models")
    try:
        return str(answer["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise ConfigError(f"{url} lists no model: name one with --model") from None


def root(url: str) -> str:
    """The URL with /v1 at its end. Raises ConfigError for one that is not of HTTP."""
    bare = url.rstrip("/")
    if not bare.startswith(("http://", "https://")):
        raise ConfigError(f"{url!r} is no URL: write it like http://localhost:8000/v1")
    return bare if bare.endswith("/v1") else f"{bare}/v1"


def ask(url: str, body: dict[str, Any] | None = None) -> Any:
    """The JSON that a server answers. Raises ConfigError for an error, or no answer; RefusedError for 400 and more."""
    try:
        with urllib.request.urlopen(request(url, body), timeout=TIMEOUT) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        words = error.read(300).decode(errors="replace")
        raise RefusedError(f"{url} answered {error.code}: {words}", error.code) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{url} cannot be asked ({error}): is the server running?") from None


def events(url: str, body: dict[str, Any]) -> Iterator[str]:
    """The data of each server-sent event. Raises OSError (HTTPError) as ``urllib`` does."""
    with urllib.request.urlopen(request(url, body), timeout=TIMEOUT) as response:
        for line in response:
            if line.startswith(b"data:"):
                yield line[len(b"data:") :].decode().strip()


def request(url: str, body: dict[str, Any] | None = None) -> urllib.request.Request:
    """A GET, or a POST of JSON."""
    data = None if body is None else json.dumps(body).encode()
    return urllib.request.Request(url, data, {"Content-Type": "application/json"})
