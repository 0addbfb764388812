"""One model that is served: its engine, the names and limits it is served under, its counters."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from outrider.async_llm import AsyncLLM
from outrider.config import SpeculationParams
from outrider.engine.request import Request, StepOutput
from outrider.errors import OutriderError
from outrider.llm import LLM
from outrider.models.inputs import EncodedPrompt
from outrider.recording.recorder import Recorder
from outrider.reloading import Running
from outrider.tokenizer.chat_template import MAX_CHARACTERS
from outrider.tokenizer.tokenizer import Tokenizer
from outrider.weights.hub.catalog import stored_settings
from outrider.weights.hub.stores.settings import StoredSettings
from outrider_server.answer.formats import PLAIN, AnswerFormat
from outrider_server.executors import Executors
from outrider_server.fingerprint import fingerprint
from outrider_server.http.context import Callers
from outrider_server.http.errors import ApiError, invalid, unavailable
from outrider_server.http.metrics import Metrics
from outrider_server.said import LastSaid
from outrider_server.settings import ServerSettings
from outrider_server.speculation_limits import check_speculation

State = Literal["unloaded", "loading", "ready", "draining", "dead"]


@dataclass(frozen=True)
class ServedImageLimits:
    """The images that one prompt may have: their count, the bytes of a file, the pixels of an image."""

    count: int
    nbytes: int
    pixels: int


class Service:
    """One engine, with the names and limits that it is served under."""

    def __init__(
        self,
        settings: ServerSettings,
        model_name: str,
        *,
        callers: Callers | None = None,
        executors: Executors | None = None,
    ) -> None:
        """``model_name`` is the name that clients use, unless the settings give others.

        ``callers`` and ``executors`` are the server's own, where it serves several models.
        """
        self.settings = settings
        self.callers = callers or Callers(share_across_keys=settings.share_across_keys)
        self.model_names = settings.served_model_names or (model_name,)
        self.metrics = Metrics()
        self.state: State = "loading"
        self.started = int(time.time())
        self.fingerprint = ""
        self._recorder: Recorder | None = None
        self.answer_format: AnswerFormat = PLAIN
        self.stored = StoredSettings()  # what Ollama's store says of the model: defaults of Ollama's API
        self.sequences_of: Counter[str] = Counter()  # by tenant: admitted and not finished (``generation.Reservation``)
        self.executors = executors or Executors()
        self.said = LastSaid()
        self.metrics.admitted.set_function(lambda: self.sequences)
        self._llm: AsyncLLM | None = None

    def attach(self, llm: LLM, on_death: Callable[[], None] = lambda: None) -> None:
        """Start serving with a model that has been loaded. ``on_death`` is called if the engine ever dies."""

        def died(_: BaseException) -> None:
            self.state = "dead"
            on_death()

        with contextlib.suppress(OutriderError):  # a request with a grammar is told the reason
            llm.grammars.prepare()
        llm.tokenizer.prepare()
        self.begin(AsyncLLM(llm, on_death=died), fingerprint(llm))

    def begin(self, engine: AsyncLLM, fingerprint: str) -> None:
        """Serve with ``engine`` from now on, in place of the one before if there was one."""
        self.fingerprint = fingerprint
        self.answer_format = AnswerFormat.of(engine.llm.tokenizer)
        self.stored = stored_settings(engine.llm.config.model)
        self.model_names = tuple(dict.fromkeys((*self.model_names, *engine.llm.adapters.names)))
        self.metrics.watch(engine.llm.engine)
        if self.settings.record is not None:
            self._recorder = Recorder(Path(self.settings.record), engine.llm.config.model, engine.llm.model)
        self._llm = engine
        if self.state != "draining":
            self.state = "ready"

    async def update_weights(self, path: str, *, running: Running, keep_drafts: bool) -> None:
        """Serve with the weights at ``path`` from now on (``AsyncLLM.update_weights``)."""
        engine = self.engine
        await engine.update_weights(path, running=running, keep_drafts=keep_drafts)
        self.fingerprint = fingerprint(engine.llm)

    @property
    def sequences(self) -> int:
        """Of all tenants."""
        return self.sequences_of.total()

    def detach(self) -> None:
        """Stop serving, and release the model: its thread, weights and caches. Requests that run end with an error."""
        async_llm, self._llm = self._llm, None
        if async_llm is not None:
            async_llm.close()
            self.metrics.unwatch()
            async_llm.llm.close()
            _return_freed_memory()

    def record(self, name: str, model: str, requests: Sequence[Request], steps: Sequence[Sequence[StepOutput]]) -> None:
        """Add the sequences of a request that has ended to the operator's record, if there is one."""
        if self._recorder is not None:
            self._recorder.add(requests, steps, name, model)

    def close(self) -> None:
        self.executors.close()
        if self._llm is not None:
            self._llm.close()

    @property
    def engine(self) -> AsyncLLM:
        """Raises ApiError 503 while there is none to serve with."""
        if self.state == "dead":
            raise self.stopped()
        if self.state == "loading" or self._llm is None:
            raise unavailable("the model is being loaded: try again", 2, "loading")
        return self._llm

    def stopped(self) -> ApiError:
        """The error for requests after the engine's death."""
        if self.settings.models:
            return unavailable(
                "the engine of this model has stopped: try again, and it is loaded anew", 1, "engine_dead"
            )
        return ApiError(503, "the engine has stopped: the server must be restarted", code="engine_dead")

    @property
    def tokenizer(self) -> Tokenizer:
        return self.engine.llm.tokenizer

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The tokens of a prompt. A text that no context could hold is refused by its length alone."""
        self.check_length(text, "prompt")
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def read_images(self, prompt: Any, **scheduling: Any) -> EncodedPrompt:
        """A prompt with its images read, within the server's limits."""
        settings = self.settings
        limits = ServedImageLimits(
            settings.limits.max_images, settings.max_body_bytes, settings.limits.max_image_pixels
        )
        return self.engine.llm.read(prompt, limits=limits, **scheduling)

    def check_length(self, text: str, param: str) -> None:
        """Raises ApiError 400 for a text that cannot fit into the context, however it is tokenized."""
        if len(text) > self.max_characters:
            tokens = f"no more than {self.max_characters} fit into the {self.max_seq_len} tokens of the context"
            raise invalid(
                f"{param} has {len(text)} characters, and {tokens}: shorten it", param, "context_length_exceeded"
            )

    @property
    def max_characters(self) -> int:
        """Of a text that fits into the context, if all its tokens are of the longest kind."""
        each = self.tokenizer.characters_per_token
        return MAX_CHARACTERS if each is None else min(MAX_CHARACTERS, each * self.max_seq_len)

    @property
    def max_seq_len(self) -> int:
        return self.engine.llm.engine.max_seq_len

    def check_model(self, name: str | None) -> str:
        """The name to answer under; ApiError 404 if it is not served."""
        if name is None:
            return next((known for known in self.model_names if known != "*"), "outrider")
        if name in self.model_names or "*" in self.model_names:
            return name
        raise not_served(name, self.model_names)

    def check_speculation(self, wanted: SpeculationParams) -> None:
        """Raise ApiError 400 for speculation that a request may not ask for: ``speculation_limits``."""
        if wanted != self.engine.llm.speculation:
            check_speculation(self.engine.llm, self.settings, wanted)


def _return_freed_memory() -> None:
    """Return freed memory to the system; the C library would keep it for the process."""
    with contextlib.suppress(OSError, AttributeError):  # not every C library has it
        ctypes.CDLL(None).malloc_trim(0)


def not_served(name: str, known: Iterable[str]) -> ApiError:
    """The error for an unknown model; ``known`` are the names of the served models."""
    return ApiError(
        404,
        f"the model {name[:80]!r} is not served here: use {', '.join(known)}",
        param="model",
        code="model_not_found",
    )
