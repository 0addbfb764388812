"""The model of golden tests: an ``LLM`` whose drawn seeds depend on the request alone."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from threading import Lock
from typing import Any

from outrider.config.request import Params, Speculation, request_options
from outrider.engine.request import Request
from outrider.llm import LLM

__all__ = ["GoldenLLM"]


class GoldenLLM(LLM):
    """A request without a seed gets that of its prompt, its options, and the number of equal requests before it.

    So it has the same answer in every run, in whatever order an agent's requests come.
    """

    def __init__(self, model: str, **options: Any) -> None:
        """As ``LLM``."""
        self._asked: Counter[str] = Counter()
        self._lock = Lock()
        super().__init__(model, **options)

    def forget(self) -> None:
        """Count equal requests from none: a test begins."""
        self._asked = Counter()

    def requests(
        self, prompt: Any, params: Params = None, speculation: Speculation = None, **scheduling: Any
    ) -> list[Request]:
        """As ``LLM.requests``. Each request reports its logits, for the record."""
        params, speculation, rest = request_options(params, speculation, scheduling)
        read = self.read(prompt, **rest)
        if params.seed is None:
            params = replace(params, seed=self._seed(read.token_ids, params))
        return super().requests(read, params, speculation, **rest | {"reports_logits": True})

    def _seed(self, prompt: Sequence[int], params: object) -> int:
        asked = repr((list(prompt), params))
        with self._lock:  # a server asks in several threads
            self._asked[asked] += 1
            number = self._asked[asked]
        digest = hashlib.blake2b(f"{asked} {number}".encode(), digest_size=4).digest()
        return int.from_bytes(digest)
