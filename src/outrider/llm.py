"""``LLM``: load a model once, then generate, chat and stream."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

import torch

from outrider.config import ModelOptions, SamplingParams, SpeculationParams
from outrider.drafters.base import Drafter
from outrider.drafters.lookup import LookupDrafter
from outrider.drafters.model import ModelDrafter
from outrider.drafters.ngram import NgramDrafter
from outrider.engine.engine import Engine
from outrider.engine.request import Request, StepOutput
from outrider.engine.stats import RequestStats
from outrider.engine.stopping import FinishReason
from outrider.errors import ConfigError, InvalidRequestError
from outrider.models.base import Model
from outrider.models.catalog import resolve
from outrider.models.load import load_model
from outrider.models.tokenizer import IncrementalDetokenizer, Tokenizer, check_same_vocabulary

SOURCES = ("none", "ngram", "lookup", "model")

Message = Mapping[str, Any]
Prompt = str | Sequence[int]


@dataclass(frozen=True)
class Output:
    """A finished request."""

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    seed: int  # with which the same tokens come again
    prompt_token_ids: list[int]
    stats: RequestStats
    steps: list[StepOutput] = field(repr=False)  # token by token: text, origin, log-probabilities


class LLM:
    """A target model, with or without drafts.

        llm = LLM("smollm2-135m-instruct", draft="ngram", spec_length=8)
        llm.generate("Write a haiku about rivers.", SamplingParams(max_tokens=64)).text

    Which draft is used never changes the output, only how fast it comes.
    """

    def __init__(
        self,
        model: str,
        *,
        draft: str | None = None,
        draft_model: str | None = None,
        spec_length: int | None = None,
        speculation: SpeculationParams | None = None,
        options: ModelOptions | None = None,
        draft_options: ModelOptions | None = None,
        threads: int | None = None,
        progress: bool = False,
    ) -> None:
        """Load ``model`` and, if named, ``draft_model``.

        Args:
            model: a built-in name, a folder, a ``.gguf`` file or a hub id (see ``outrider models``).
            draft: a draft source: none, ngram, lookup or model; "model" if only ``draft_model`` is given.
            spec_length: draft tokens per step at most.
            speculation: all of a request's speculation options at once; ``draft`` and ``spec_length`` override it.
            options: dtype, device and context length of the target; ``draft_options`` of the draft model.
            threads: CPU threads; None leaves torch's choice.
            progress: report downloads on the terminal.

        Raises:
            OutriderError: the model cannot be found or loaded, or the options do not go together.
        """
        if threads is not None:
            if threads < 1:
                raise ConfigError(f"threads={threads} is not valid: use at least 1")
            torch.set_num_threads(threads)
        self.speculation = _speculation(speculation, draft, spec_length, draft_model)
        folder = resolve(model, progress=progress)
        draft_folder = None if draft_model is None else resolve(draft_model, progress=progress)
        self.tokenizer = Tokenizer.from_folder(folder)
        if draft_folder is not None:  # before any weights are read
            check_same_vocabulary(self.tokenizer, Tokenizer.from_folder(draft_folder))
        self.model: Model = load_model(folder, options or ModelOptions())
        vocab_size = min(self.tokenizer.vocab_size, self.model.config.vocab_size)
        self.drafters: dict[str, Drafter] = {"ngram": NgramDrafter(vocab_size), "lookup": LookupDrafter()}
        if draft_folder is not None:
            small = load_model(draft_folder, draft_options or ModelOptions())
            limit = self.model.config.max_seq_len
            self.drafters["model"] = ModelDrafter(small, vocab_size=vocab_size, slots=1, max_seq_len=limit)
        eos = tuple({*self.tokenizer.eos_token_ids, *self.model.config.eos_token_ids})
        self.engine = Engine(self.model, drafters=self.drafters, eos_token_ids=eos, vocab_size=vocab_size)
        self._eos = eos
        self._ids = itertools.count()

    @overload  # a str is also a sequence of str: one text, one output
    def generate(  # type: ignore[overload-overlap]
        self, prompts: str, params: SamplingParams | None = None, *, speculation: SpeculationParams | None = None
    ) -> Output: ...
    @overload
    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        speculation: SpeculationParams | None = None,
    ) -> list[Output]: ...
    def generate(
        self,
        prompts: str | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        speculation: SpeculationParams | None = None,
    ) -> Output | list[Output]:
        """Continue one text, or a list of texts and token-id lists; several run one after another.

        Raises:
            InvalidRequestError: a prompt or an option is impossible; nothing has run then.
            NumericalError: the model's output is not a number.
        """
        single = isinstance(prompts, str)
        batch: list[Prompt] = [prompts] if isinstance(prompts, str) else list(prompts)
        options = list(params) if isinstance(params, Sequence) else [params] * len(batch)
        if len(options) != len(batch):
            raise InvalidRequestError(f"{len(batch)} prompts came with {len(options)} SamplingParams", param="params")
        requests = [self._request(p, o, speculation) for p, o in zip(batch, options, strict=True)]
        outputs = [self._finish(request) for request in requests]
        return outputs[0] if single else outputs

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        speculation: SpeculationParams | None = None,
    ) -> Output:
        """Answer a conversation of ``{"role", "content"}`` messages, written with the model's chat template."""
        return self._finish(self._request(self.tokenizer.encode_chat(messages), params, speculation))

    def stream(
        self,
        prompt: Prompt | Sequence[Message],
        params: SamplingParams | None = None,
        *,
        speculation: SpeculationParams | None = None,
    ) -> Iterator[StepOutput]:
        """Tokens as they are committed. ``prompt`` is text, token ids or chat messages.

        Leaving the loop early aborts the request. The statistics of the whole are in ``self.last``.
        """
        if not isinstance(prompt, str) and prompt and isinstance(prompt[0], Mapping):
            prompt = self.tokenizer.encode_chat(prompt)  # type: ignore[arg-type]
        request = self._request(prompt, params, speculation)  # type: ignore[arg-type]
        return self._stream(request)

    def _stream(self, request: Request) -> Iterator[StepOutput]:
        self.last = request
        self.engine.add(request)
        try:
            while request.finish_reason is None:
                yield from self.engine.step()
                if request.error is not None:
                    raise request.error
        finally:
            self.engine.abort(request.id)

    def _request(self, prompt: Prompt, params: SamplingParams | None, speculation: SpeculationParams | None) -> Request:
        params = params or SamplingParams()
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        stop = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else frozenset(self._eos))
        request = Request(
            id=str(next(self._ids)),
            prompt=tuple(ids),
            params=params,
            speculation=speculation or self.speculation,
            stop_ids=stop,
            detokenizer=IncrementalDetokenizer(self.tokenizer, ids, skip_special_tokens=params.skip_special_tokens),
        )
        self.engine.check(request)
        return request

    def _finish(self, request: Request) -> Output:
        steps = list(self._stream(request))
        assert request.finish_reason is not None
        return Output(
            text=request.text,
            token_ids=list(request.output),
            finish_reason=request.finish_reason,
            seed=request.seed,
            prompt_token_ids=list(request.prompt),
            stats=request.stats,
            steps=steps,
        )


def _speculation(
    base: SpeculationParams | None, draft: str | None, spec_length: int | None, draft_model: str | None
) -> SpeculationParams:
    """Merge the short-hand arguments into one set of options."""
    chosen = base or SpeculationParams()
    if draft is None and draft_model is not None and base is None:
        draft = "model"
    if draft is not None:
        chosen = replace(chosen, draft=draft)
    if spec_length is not None:
        chosen = replace(chosen, spec_length=spec_length)
    if chosen.draft not in SOURCES:
        raise ConfigError(f"draft={chosen.draft!r} is unknown: use one of {', '.join(SOURCES)}")
    if chosen.draft == "model" and draft_model is None:
        raise ConfigError("draft='model' needs a draft model: name one with draft_model (--draft-model)")
    if draft_model is not None and chosen.draft != "model":
        raise ConfigError(
            f"draft_model={draft_model!r} would not be used with draft={chosen.draft!r}: use draft='model'"
        )
    return chosen
