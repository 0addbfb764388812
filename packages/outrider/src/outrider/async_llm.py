"""``AsyncLLM``: the same engine behind ``async for``, in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from types import TracebackType
from typing import Any, Literal, TypeVar, Unpack

from outrider.config import DTypeName, SpeculationParams, VerifierName
from outrider.config.engine import CacheName, Implementation, KVCacheDType
from outrider.config.options import OtherNames, changed_options
from outrider.config.request import Params, RequestOptions, Speculation, request_options
from outrider.engine.request import Request, StepOutput
from outrider.engine.thread import EngineThread, Event
from outrider.errors import CapacityError, ConfigError
from outrider.input_processor import Message, Prompt
from outrider.llm import LLM
from outrider.output import Output, one_or_all
from outrider.prompts import resolve_alias
from outrider.reloading import Running, Weights, ending

T = TypeVar("T")


class AsyncLLM:
    """Serves any number of tasks of any event loop at once.

        async with AsyncLLM("smollm2-135m-instruct", draft="ngram") as llm:
            async for step in llm.stream("Once upon a time"):
                print(step.text, end="")

    A task that is cancelled, or leaves its loop, frees its place in the engine within a step.

    Args:
        model: as for ``LLM``. An ``LLM`` is used as it is; it serves nothing else meanwhile, and stays open.
        on_death: called on the engine's thread should that ever die (see ``EngineThread``).
        progress: as for ``LLM``, like all other options.

    Raises:
        ConfigError: an option is given with an ``LLM``, which is loaded already.
        OutriderError: as for ``LLM``.
    """

    def __init__(
        self,
        model: str | LLM,
        *,
        on_death: Callable[[BaseException], None] = lambda error: None,
        progress: bool = False,
        draft: str = "auto",
        spec_length: int | Literal["auto"] = "auto",
        tree: str | Iterable[int] | None = None,
        tree_nodes: int = 16,
        lookahead: str | Iterable[int] | None = None,
        verifier: VerifierName = "matching",
        draft_temperature: float | None = None,
        counts_as_q: bool = False,
        prediction: str | Iterable[int] | None = None,
        lenience: float | None = None,
        posterior_threshold: float | None = None,
        speculation: SpeculationParams | None = None,
        draft_model: str | Sequence[str] | None = None,
        heads: str | Iterable[str] = (),
        draft_layers: int | None = None,
        draft_table: str | None = None,
        datastore: str = "auto",
        enable_lora: bool = False,
        lora_modules: Mapping[str, str] | Iterable[str] = (),
        extra_sources: Iterable[str] = (),
        dtype: DTypeName = "auto",
        draft_dtype: DTypeName = "auto",
        device: str = "auto",
        cuda_graphs: bool = True,
        implementation: Implementation = "auto",
        threads: int | None = None,
        tensor_parallel_size: int = 1,
        kv_cache: CacheName = "contiguous",
        kv_cache_dtype: KVCacheDType = "auto",
        prefix_reuse: bool = True,
        session_dir: str | None = None,
        session_gb: float = 16.0,
        kv_tokens: int | None = None,
        max_batch_size: int = 8,
        max_seq_len: int | None = None,
        max_batched_tokens: int = 1024,
        **other_names: Unpack[OtherNames],
    ) -> None:
        """Load ``model``, and start a thread for its engine."""
        options = changed_options(AsyncLLM.__init__, locals())
        if isinstance(model, LLM) and options:
            raise ConfigError(f"{next(iter(options))} is given with an LLM that is loaded already: give it to that LLM")
        self._owns_llm = not isinstance(model, LLM)
        self.llm = model if isinstance(model, LLM) else LLM(model, progress=progress, **options)
        self._thread = EngineThread(self.llm.engine, on_death=on_death)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """Whether requests can still be served."""
        return self._thread.alive

    def call(self, work: Callable[[], None]) -> None:
        """Do something on the engine's thread, between two steps."""
        self._thread.call(work)

    async def update_weights(self, weights: Weights, *, running: Running = "wait", keep_drafts: bool = False) -> None:
        """Replace the model's weights in place; as ``LLM.update_weights``. Other tasks go on while they are loaded."""
        error, done = ending(running), Future[None]()
        new = await asyncio.to_thread(self.llm.load_weights, weights)
        self._thread.pause(lambda: self.llm.use_weights(new, keep_drafts=keep_drafts), error, done)
        await asyncio.wrap_future(done)

    def close(self) -> None:
        """Stop the engine's thread, and close the ``LLM`` if it was loaded here.

        Requests that still run end with ``EngineDeadError``, as do later ones. Closing twice does nothing.
        """
        self._thread.close()
        if self._owns_llm:
            self.llm.close()

    async def stream(
        self,
        prompt: Prompt | Sequence[Message],
        params: Params = None,
        *,
        speculation: Speculation = None,
        sampling_params: Params = None,
        **scheduling: Unpack[RequestOptions],
    ) -> AsyncIterator[StepOutput]:
        """Tokens as they are committed; see ``LLM.stream``."""
        request = await self._made(
            self.llm.request, prompt, resolve_alias(params, sampling_params), speculation, scheduling
        )
        async with aclosing(self.bursts([request])) as bursts:
            async for _, steps in bursts:
                for step in steps:
                    yield step

    async def generate(
        self,
        prompt: Prompt | Sequence[Message],
        params: Params = None,
        *,
        speculation: Speculation = None,
        sampling_params: Params = None,
        **scheduling: Unpack[RequestOptions],
    ) -> Output | Any:  # Any: with n above 1, list[Output]
        """The output of one prompt; with ``n`` above 1, a list of ``n``."""
        options = resolve_alias(params, sampling_params)
        requests = await self._made(self.llm.requests, prompt, options, speculation, scheduling)
        steps: list[list[StepOutput]] = [[] for _ in requests]
        async with aclosing(self.bursts(requests)) as bursts:
            async for index, burst in bursts:
                steps[index] += burst
        token_text = self.llm.tokenizer.token_text
        return one_or_all([Output.of(request, own, token_text) for request, own in zip(requests, steps, strict=True)])

    async def _made(
        self,
        make: Callable[..., T],
        prompt: Prompt | Sequence[Message],
        params: Params,
        speculation: Speculation,
        options: RequestOptions,
    ) -> T:
        """Requests. A grammar, or images, may take seconds, which the loop's other tasks must not wait for."""
        images = self.llm.sees and not isinstance(prompt, str)
        params, speculation, scheduling = request_options(params, speculation, options)
        if not images and params.structured is None:
            return make(prompt, params, speculation, **scheduling)
        return await asyncio.to_thread(make, prompt, params, speculation, **scheduling)

    async def bursts(
        self, requests: Sequence[Request], *, backlog: int | None = None
    ) -> AsyncGenerator[tuple[int, list[StepOutput]]]:
        """The tokens of several requests, step by step: (index, tokens in order), until all have ended.

        Args:
            requests: made by ``llm.requests``, not yet queued. They leave the engine when the iteration ends, for
                whatever reason; close it (``contextlib.aclosing``) to free their places at once.
            backlog: tokens that may wait unread. A reader that falls further behind loses its requests.

        Raises:
            CapacityError: the reader was too slow.
            OutriderError: the first request that failed, which ends the others.
        """
        loop, events = asyncio.get_running_loop(), asyncio.Queue[tuple[int, Event]]()
        unread = 0

        def arrived(index: int, event: Event) -> None:
            nonlocal unread
            unread += len(event) if isinstance(event, list) else 0
            if backlog is not None and unread > backlog:
                for request in requests:
                    self._thread.drop(request.id)
                events.put_nowait((index, CapacityError(f"{unread} tokens wait unread, more than {backlog}")))
            else:
                events.put_nowait((index, event))

        def listener(index: int) -> Callable[[Event], None]:
            def tell(event: Event) -> None:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(arrived, index, event)

            return tell

        running = len(requests)
        try:
            self._thread.submit([(request, listener(index)) for index, request in enumerate(requests)])
            while running:
                index, event = await events.get()
                if isinstance(event, BaseException):
                    raise event
                if event is None:
                    running -= 1
                else:
                    unread -= len(event)
                    yield index, event
        finally:
            for request in requests:
                self._thread.drop(request.id)
