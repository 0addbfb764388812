"""``LLM``: load a model once, then generate, chat and stream."""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch

from outrider.checkpoints.catalog import resolve
from outrider.checkpoints.loader import load_model
from outrider.config import EngineConfig, SamplingParams
from outrider.drafters.context import DrafterContext
from outrider.drafters.registry import Sources
from outrider.drafters.text.table import DraftTable
from outrider.drafters.trained.heads import choose_heads, head_bytes
from outrider.engine.engine import Engine
from outrider.engine.memory import available_bytes, plan_memory
from outrider.engine.request import Request, StepOutput
from outrider.engine.stats import RequestStats
from outrider.engine.stopping import FinishReason
from outrider.errors import InvalidRequestError
from outrider.input_processor import Intake, Message, Prompt, Speculation, for_each, for_one
from outrider.models.llama import LlamaModel
from outrider.tokenizer.tokenizer import Tokenizer, check_same_vocabulary

if TYPE_CHECKING:
    from outrider.grammar import GrammarCompiler

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Output:
    """A finished request."""

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    seed: int  # with which the same tokens come again
    prompt_token_ids: list[int]
    prompt_logprobs: list[Mapping[int, float]]  # of every prompt token but the first, if asked for
    stats: RequestStats
    steps: list[StepOutput] = field(repr=False)  # token by token: text, origin, log-probabilities


class LLM:
    """A target model, with or without drafts.

        llm = LLM("smollm2-135m-instruct", draft="ngram", spec_length=8)
        llm.generate("Write a haiku about rivers.", SamplingParams(max_tokens=64)).text

    Which draft is used never changes the output, only how fast it comes.
    """

    def __init__(self, model: str, *, progress: bool = False, **options: Any) -> None:
        """Load ``model`` and, if named, a draft model.

        Args:
            model: a built-in name, a folder, a ``.gguf`` file or a hub id (see ``outrider models``).
            progress: report downloads and the memory budget on the terminal.
            options: the fields of ``EngineConfig``, such as ``draft``, ``draft_model``, ``spec_length``, ``dtype``.

        Raises:
            OutriderError: the model cannot be found or loaded, or the options do not go together.
        """
        self.config = config = EngineConfig(model=model, **options)
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        folder = resolve(model, progress=progress)
        self.tokenizer = Tokenizer.from_folder(folder)
        small: list[LlamaModel] = []
        for name in config.draft_models:
            draft_folder = resolve(name, progress=progress)
            check_same_vocabulary(self.tokenizer, Tokenizer.from_folder(draft_folder))  # before weights are read
            small.append(load_model(draft_folder, config.draft_options()))
        self.model = load_model(folder, config.target_options())
        vocab_size = min(self.tokenizer.vocab_size, self.model.config.vocab_size)
        draft, heads = choose_heads(config, self.model)
        self.config = config = replace(config, draft=draft)
        self.speculation = config.speculation()
        self.memory_plan = plan_memory(
            self.model, small, config, available_bytes(self.model.device), *head_bytes(heads, self.model)
        )
        if progress:
            print(self.memory_plan.line(), file=sys.stderr)
        for line in self.memory_plan.lines():
            logger.info("memory: %s", line)
        cache = self.memory_plan.cache_spec(config, self.model.config.max_seq_len)
        self.draft_models = tuple(small)
        kv_cache = self.model.new_cache(cache)
        table = None if config.draft_table is None else DraftTable.load(Path(config.draft_table))
        if table is not None:
            table.check_vocabulary(vocab_size)
        self.drafters = Sources(
            DrafterContext(
                vocab_size=vocab_size,
                cache=cache,
                draft_models=self.draft_models,
                heads=heads,
                target=self.model,
                target_cache=kv_cache,
                draft_layers=config.draft_layers,
                draft_table=table,
                custom_sources=config.custom_sources,
            )
        )
        eos = tuple({*self.tokenizer.eos_token_ids, *self.model.config.eos_token_ids})
        self.engine = Engine(
            self.model,
            drafters=self.drafters,
            eos_token_ids=eos,
            vocab_size=vocab_size,
            cache=cache,
            kv_cache=kv_cache,
            max_batched_tokens=config.max_batched_tokens,
        )
        if self.speculation.draft != "none" and self.speculation.spec_length == "auto":
            self.engine.calibrate()
        self._intake = Intake(self.tokenizer, eos, self.speculation)
        self._inboxes: dict[str, deque[StepOutput]] = {}

    @property
    def grammars(self) -> GrammarCompiler:
        """Compiles structured outputs."""
        return self._intake.grammars

    @overload  # a str is also a sequence of str: one text, one output
    def generate(
        self,
        prompts: str,
        params: SamplingParams | None = None,
        *,
        speculation: Speculation = None,
        **scheduling: Any,
    ) -> Output: ...
    @overload
    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        speculation: Speculation | Sequence[Speculation] = None,
        **scheduling: Any,
    ) -> list[Output]: ...
    def generate(
        self,
        prompts: str | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        speculation: Speculation | Sequence[Speculation] = None,
        **scheduling: Any,
    ) -> Output | list[Output]:
        """Continue one text, or many texts and token-id lists at once.

        ``params`` and ``speculation`` are for all prompts, or one for each. With ``params.n`` above 1 a list of
        prompts gives ``n`` outputs for each prompt, next to each other. ``scheduling``: a lower ``priority`` runs
        first (default 0); only requests with the same ``cache_salt`` (default "") share what they have read.

        Raises:
            InvalidRequestError: a prompt or an option is impossible; nothing has run then.
            NumericalError: the model's output is not a number.
        """
        if isinstance(prompts, str):
            own, source = for_one(params, "params"), for_one(speculation, "speculation")
            request = self.request(prompts, own, source, **scheduling)
            return self._run([request])[0]
        batch = list(prompts)
        options = for_each(params, len(batch), "params")
        sources = for_each(speculation, len(batch), "speculation")
        requests = [
            request
            for prompt, own, source in zip(batch, options, sources, strict=True)
            for request in self.requests(prompt, own, source, **scheduling)
        ]
        return self._run(requests)

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        speculation: Speculation = None,
        **scheduling: Any,
    ) -> Output:
        """Answer a conversation of ``{"role", "content"}`` messages, written with the model's chat template.

        ``scheduling``: ``priority`` and ``cache_salt``, as for ``generate``.
        """
        return self._run([self.request(messages, params, speculation, **scheduling)])[0]

    def stream(
        self,
        prompt: Prompt | Sequence[Message],
        params: SamplingParams | None = None,
        *,
        speculation: Speculation = None,
        **scheduling: Any,
    ) -> Iterator[StepOutput]:
        """Tokens as they are committed. ``prompt`` is text, token ids or chat messages.

        Leaving the loop early aborts the request, which stays in ``self.last`` with its text and statistics.
        """
        self.last = self.request(prompt, params, speculation, **scheduling)
        return self._stream(self.last)

    def request(
        self,
        prompt: Prompt | Sequence[Message],
        params: SamplingParams | None = None,
        speculation: Speculation = None,
        **scheduling: Any,
    ) -> Request:
        """The checked request of one prompt with one output. Raises InvalidRequestError if more are asked for."""
        if params is not None and params.n != 1:
            raise InvalidRequestError(f"n={params.n} outputs here: use generate with a list of prompts", param="n")
        return self.requests(prompt, params, speculation, **scheduling)[0]

    def requests(
        self,
        prompt: Prompt | Sequence[Message],
        params: SamplingParams | None = None,
        speculation: Speculation = None,
        *,
        priority: int = 0,
        cache_salt: str = "",
    ) -> list[Request]:
        """The checked requests of one prompt, ``params.n`` of them, ready for ``engine.add``."""
        params = params or SamplingParams()
        ids = self._intake.token_ids(prompt)
        first = self._intake.request(ids, params, speculation)
        self.engine.check(first)
        others = [
            self._intake.request(ids, replace(params, seed=first.seed + i), speculation, after=first)
            for i in range(1, params.n)
        ]
        for request in (first, *others):
            request.priority, request.cache_salt = priority, cache_salt
        return [first, *others]

    def output(self, request: Request, steps: list[StepOutput]) -> Output:
        """What a finished request gave; raises the error it ended with, if it did."""
        if request.error is not None:
            raise request.error
        assert request.finish_reason is not None
        return Output(
            text=request.text,
            token_ids=list(request.output),
            finish_reason=request.finish_reason,
            seed=request.seed,
            prompt_token_ids=list(request.prompt),
            prompt_logprobs=list(request.prompt_logprobs),
            stats=request.stats,
            steps=steps,
        )

    def _run(self, requests: Sequence[Request]) -> list[Output]:
        try:
            for request in requests:
                self.engine.add(request)
                self._inboxes[request.id] = deque()
            while any(request.finish_reason is None and request.error is None for request in requests):
                self._step()
        finally:
            steps = {request.id: list(self._inboxes.pop(request.id, ())) for request in requests}
            for request in requests:
                self.engine.abort(request.id)  # nothing is left behind by an interruption
        return [self.output(request, steps[request.id]) for request in requests]

    def _step(self) -> None:
        """One step of the engine; streams that are open beside this one get their tokens too."""
        for step in self.engine.step():
            self._inboxes[step.request_id].append(step)

    def _stream(self, request: Request) -> Iterator[StepOutput]:
        self.engine.add(request)
        inbox = self._inboxes[request.id] = deque()
        try:
            while inbox or (request.finish_reason is None and request.error is None):
                if not inbox:
                    self._step()
                while inbox:
                    yield inbox.popleft()
        finally:
            self.engine.abort(request.id)
            del self._inboxes[request.id]
        if request.error is not None:
            raise request.error
