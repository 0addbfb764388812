"""The state of a server: its engine, the names and limits it serves under, its counters."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Literal, TypeVar

from outrider.async_llm import AsyncLLM
from outrider.llm import LLM
from outrider.server.fingerprint import fingerprint
from outrider.server.http.callers import Callers
from outrider.server.http.errors import ApiError, unavailable
from outrider.server.http.metrics import Metrics
from outrider.server.settings import ServerSettings
from outrider.tokenizer.tokenizer import Tokenizer

T = TypeVar("T")
State = Literal["loading", "ready", "draining", "dead"]


class Service:
    """One engine, and what a server knows about it."""

    def __init__(self, settings: ServerSettings, model_name: str) -> None:
        """``model_name`` is what clients ask for, unless the settings name others."""
        self.settings = settings
        self.callers = Callers(share_across_keys=settings.share_across_keys)
        self.model_names = settings.served_model_names or (model_name,)
        self.metrics = Metrics()
        self.state: State = "loading"
        self.started = int(time.time())
        self.fingerprint = ""
        self.sequences_of: Counter[str] = Counter()  # by tenant: admitted and not finished (``generation.Reservation``)
        self.metrics.admitted.set_function(lambda: self.sequences)
        self._llm: AsyncLLM | None = None

    def attach(self, llm: LLM, on_death: Callable[[], None] = lambda: None) -> None:
        """Start serving with a model that has been loaded. ``on_death`` is called if the engine ever dies."""

        def died(_: BaseException) -> None:
            self.state = "dead"
            on_death()

        self.fingerprint = fingerprint(llm)
        self.metrics.watch(llm.engine)
        self._llm = AsyncLLM(llm, on_death=died)
        self.state = "ready"

    @property
    def sequences(self) -> int:
        """Of all tenants."""
        return self.sequences_of.total()

    def close(self) -> None:
        if self._llm is not None:
            self._llm.close()

    @property
    def engine(self) -> AsyncLLM:
        """Raises ApiError 503 while there is none to serve with."""
        if self.state == "loading" or self._llm is None:
            raise unavailable("the model is being loaded: try again", 2, "loading")
        if self.state == "dead":
            raise ApiError(503, "the engine has stopped: the server must be restarted", code="engine_dead")
        return self._llm

    @property
    def tokenizer(self) -> Tokenizer:
        return self.engine.llm.tokenizer

    @property
    def max_seq_len(self) -> int:
        return self.engine.llm.engine.max_seq_len

    def check_model(self, name: str | None) -> str:
        """The name to answer under; ApiError 404 if it is not served."""
        if name is None:
            return next((known for known in self.model_names if known != "*"), "outrider")
        if name in self.model_names or "*" in self.model_names:
            return name
        known = ", ".join(self.model_names)
        raise ApiError(
            404, f"the model {name[:80]!r} is not served here: use {known}", param="model", code="model_not_found"
        )

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """Run slow work, such as tokenizing a long text, on another thread than the event loop's."""
        return await asyncio.get_running_loop().run_in_executor(None, work)
