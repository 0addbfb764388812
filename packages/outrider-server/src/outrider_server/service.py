"""One model that is served: its engine, the names and limits it is served under, its counters."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Literal

from outrider.async_llm import AsyncLLM
from outrider.errors import OutriderError
from outrider.input_processor import Prompt
from outrider.llm import LLM
from outrider.tokenizer.chat_template import MAX_CHARACTERS
from outrider.tokenizer.tokenizer import Tokenizer
from outrider_multimodal.vision import ImageLimits, ReadPrompt
from outrider_server.fingerprint import fingerprint
from outrider_server.http.callers import Callers
from outrider_server.http.errors import ApiError, invalid, unavailable
from outrider_server.http.metrics import Metrics
from outrider_server.offloop import OffLoop
from outrider_server.settings import ServerSettings

State = Literal["unloaded", "loading", "ready", "draining", "dead"]


class Service:
    """One engine, and what a server knows about it."""

    def __init__(
        self,
        settings: ServerSettings,
        model_name: str,
        *,
        callers: Callers | None = None,
        off_loop: OffLoop | None = None,
    ) -> None:
        """``model_name`` is what clients ask for, unless the settings name others.

        ``callers`` and ``off_loop`` are those of the server, where it serves several models.
        """
        self.settings = settings
        self.callers = callers or Callers(share_across_keys=settings.share_across_keys)
        self.model_names = settings.served_model_names or (model_name,)
        self.metrics = Metrics()
        self.state: State = "loading"
        self.started = int(time.time())
        self.fingerprint = ""
        self.sequences_of: Counter[str] = Counter()  # by tenant: admitted and not finished (``generation.Reservation``)
        self.off_loop = off_loop or OffLoop()
        self.metrics.admitted.set_function(lambda: self.sequences)
        self._llm: AsyncLLM | None = None

    def attach(self, llm: LLM, on_death: Callable[[], None] = lambda: None) -> None:
        """Start serving with a model that has been loaded. ``on_death`` is called if the engine ever dies."""

        def died(_: BaseException) -> None:
            self.state = "dead"
            on_death()

        with contextlib.suppress(OutriderError):  # who asks for a grammar is told why there is none
            llm.grammars.prepare()
        llm.tokenizer.prepare()
        self.begin(AsyncLLM(llm, on_death=died), fingerprint(llm))

    def begin(self, engine: AsyncLLM, fingerprint: str) -> None:
        """Serve with ``engine`` from now on, in place of the one before if there was one."""
        self.fingerprint = fingerprint
        self.model_names = tuple(dict.fromkeys((*self.model_names, *engine.llm.adapters.names)))
        self.metrics.watch(engine.llm.engine)
        self._llm = engine
        if self.state != "draining":
            self.state = "ready"

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

    def close(self) -> None:
        self.off_loop.close()
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
        """What to say once the engine has died."""
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

    def read(self, prompt: Prompt, **options: Any) -> ReadPrompt:
        """A prompt as token ids, with those of its images, within the server's limits."""
        limits = ImageLimits(self.settings.max_images, self.settings.max_body_bytes, self.settings.max_image_pixels)
        return self.engine.llm.read(prompt, limits=limits, **options)

    def check_length(self, text: str, param: str) -> None:
        """Raises ApiError 400 for a text that has more tokens than the context holds, whatever they are."""
        if len(text) > self.max_characters:
            tokens = f"no more than {self.max_characters} fit into the {self.max_seq_len} tokens of the context"
            raise invalid(f"{param} has {len(text)} characters, and {tokens}: shorten it", param)

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


def _return_freed_memory() -> None:
    """To the system: what has been freed would else stay with the process, for its own next use."""
    with contextlib.suppress(OSError, AttributeError):  # not every C library has it
        ctypes.CDLL(None).malloc_trim(0)


def not_served(name: str, known: Iterable[str]) -> ApiError:
    """For a model that there is none of; ``known`` are the names of those that there are."""
    return ApiError(
        404,
        f"the model {name[:80]!r} is not served here: use {', '.join(known)}",
        param="model",
        code="model_not_found",
    )
