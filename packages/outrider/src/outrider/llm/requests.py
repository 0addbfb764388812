"""Requests of an engine that is owned: made, run to their ends, streamed and recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Unpack, overload

from outrider.config import SamplingParams
from outrider.config.request import Params, RequestOptions, Scheduling, Speculation, request_options
from outrider.engine.request import Request, StepOutput
from outrider.errors import InvalidRequestError
from outrider.input_processor import Message, Prompt
from outrider.llm.base import BaseLLM
from outrider.models.inputs import EncodedPrompt
from outrider.output import Output, tokens_per_run
from outrider.prompts import resolve_alias
from outrider.recording.recorder import Recorder
from outrider.utils.progress import work_bar


class RequestLLM(BaseLLM):
    """Makes requests and runs them, one prompt at a time."""

    _recorder: Recorder | None = None

    def read(self, prompt: Prompt | Sequence[Message], **options: Any) -> EncodedPrompt:
        """Encode a prompt: its token ids, including the placeholders of images, and its other input.

        ``options``: ``cache_salt`` and ``tenant`` of its requests, and ``limits`` of its images.
        """
        return self._input_processor.encode_prompt(prompt, **options)

    @property
    def sees(self) -> bool:
        """Whether prompts may have images."""
        return not isinstance(self._input_processor.vision, str)

    def request(
        self,
        prompt: Prompt | Sequence[Message],
        params: Params = None,
        speculation: Speculation = None,
        **scheduling: Unpack[RequestOptions],
    ) -> Request:
        """The checked request of one prompt with one output. Raises InvalidRequestError for ``n`` above 1."""
        params, speculation, rest = request_options(params, speculation, scheduling)
        if params.n != 1:
            raise InvalidRequestError(f"n={params.n} outputs here: one at a time; use generate or chat", param="n")
        return self.requests(prompt, params, speculation, **rest)[0]

    def requests(
        self,
        prompt: Prompt | Sequence[Message],
        params: Params = None,
        speculation: Speculation = None,
        **scheduling: Unpack[RequestOptions],
    ) -> list[Request]:
        """The checked requests of one prompt, ``params.n`` of them, ready for ``engine.add``."""
        params, speculation, rest = request_options(params, speculation, scheduling)
        read = self.read(prompt, **rest)
        if self._recorder is not None and self._recorder.active and self._recorder.logits:
            rest["reports_logits"] = True
        make = partial(self._input_processor.request, read.token_ids, given=read.input)
        first = make(params, speculation, **rest)
        self.engine.check(first)
        others = [
            make(replace(params, seed=first.seed + i), speculation, prefix_leader=first, **rest)
            for i in range(1, params.n)
        ]
        read.input.prepare()  # here, not within a step, which would delay other requests
        return [first, *others]

    def stream(
        self,
        prompt: Prompt | Sequence[Message] | Request,
        params: Params = None,
        *,
        speculation: Speculation = None,
        sampling_params: Params = None,
        **scheduling: Unpack[RequestOptions],
    ) -> Iterator[StepOutput]:
        """Tokens as they are committed. ``prompt`` is text, token ids, chat messages, or a request of ``LLM.request``.

        Leaving the loop early aborts the request. ``self.last`` keeps it, with its text and statistics.
        """
        if isinstance(prompt, Request):
            self.last = prompt
        else:
            self.last = self.request(prompt, resolve_alias(params, sampling_params), speculation, **scheduling)
        steps = self._loop.stream(self.last)
        return steps if self._recorder is None else self._recorder.follow(self.last, steps)

    @overload
    def embed(  # type: ignore[overload-overlap]  # a str is also a sequence of str
        self, texts: str | list[int], **scheduling: Unpack[Scheduling]
    ) -> list[float]: ...
    @overload
    def embed(self, texts: Sequence[str | list[int]], **scheduling: Unpack[Scheduling]) -> list[list[float]]: ...
    def embed(
        self, texts: str | list[int] | Sequence[str | list[int]], **scheduling: Unpack[Scheduling]
    ) -> list[float] | list[list[float]]:
        """The embedding of a text (or its token ids), or the embeddings of a list of texts.

        As in ``/v1/embeddings``: the mean of the target's last hidden states, normalised to norm 1, ``hidden_size``
        numbers. Raises ``InvalidRequestError`` for a text that is empty or too long.
        """
        alone = isinstance(texts, str) or (bool(texts) and isinstance(texts[0], int))
        params, plain = SamplingParams(max_tokens=1), replace(self.speculation, draft="none", prediction=None)
        batch: Sequence[Any] = [texts] if alone else texts
        requests = [self.request(text, params, plain, **scheduling) for text in batch]
        for request in requests:
            request.prompt_report.final_norm = self.model.final_norm
        self._run(requests)
        vectors: list[list[float]] = [request.prompt_report.embedding().tolist() for request in requests]
        return vectors[0] if alone else vectors

    def record(self, file: str | PathLike[str], *, logits: bool = False) -> Recorder:
        """Append each request from now on to ``file``, with its tokens: ``outrider replay`` runs it again.

        In ``with`` the record ends there. Another call takes its place.

        Args:
            logits: also keep a digest of the logits of each token, and the likeliest tokens there.

        Raises:
            ConfigError: the file cannot be written.
        """
        self._recorder = Recorder(Path(file), self.config.model, self.model, logits=logits)
        return self._recorder

    def _run(self, requests: Sequence[Request], *, progress: bool = False) -> list[Output]:
        with work_bar("generate", len(requests), show=progress) as tell:
            given = self._loop.run(requests, (lambda: tell(*_done(requests))) if progress else lambda: None)
        token_text = self.tokenizer.token_text
        return [Output.of(request, steps, token_text) for request, steps in zip(requests, given, strict=True)]


def _done(requests: Sequence[Request]) -> tuple[int, str]:
    """The number of ended requests, and the tokens per forward pass of all, as text."""
    ended = sum(request.finish_reason is not None or request.error is not None for request in requests)
    return ended, tokens_per_run(request.stats for request in requests)
