"""A server with an OpenAI-compatible completions API, as a contender."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from outrider.bench.serve import Served
from outrider.errors import ConfigError
from outrider.tokenizer.tokenizer import Tokenizer


class Endpoint:
    """Sends prompts as token ids; the answer's text is read back with our tokenizer, to count and compare tokens."""

    def __init__(self, url: str, tokenizer: Tokenizer, max_tokens: int, concurrency: int, model: str) -> None:
        self.name, self.version = url, ""
        self._url = f"{url.rstrip('/').removesuffix('/v1')}/v1/completions"
        self._tokenizer, self._max_tokens, self._concurrency = tokenizer, max_tokens, concurrency
        self._model = model

    def run(self, prompts: Sequence[list[int]], salt: str) -> tuple[list[list[int]], float, list[Served]]:
        began = time.perf_counter()
        with ThreadPoolExecutor(self._concurrency) as pool:
            texts = list(pool.map(self._complete, prompts))
        seconds = time.perf_counter() - began
        return [self._tokenizer.encode(text, add_special_tokens=False) for text in texts], seconds, []

    def peak_mb(self) -> float:
        """Not known from here."""
        return 0.0

    def _complete(self, prompt: list[int]) -> str:
        body: dict[str, Any] = {
            "model": self._model, "prompt": prompt, "max_tokens": self._max_tokens, "temperature": 0,
        }  # fmt: skip
        request = urllib.request.Request(self._url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=600) as response:
                return str(json.load(response)["choices"][0]["text"])
        except urllib.error.HTTPError as error:
            raise ConfigError(
                f"{self._url} answered {error.code}: {error.read(300).decode(errors='replace')}"
            ) from None
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            raise ConfigError(
                f"{self._url} does not answer as it should ({error!r}): is it the right server?"
            ) from None
