"""One output: a request of ``LLM`` with the sampler chain, its tokens, and why it ended."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from outrider import LLM, LoRARequest, SamplingParams, StepOutput
from outrider_llama.processors import StoppingCriteria
from outrider_llama.sampler import SampledRows, Sampler

NO_TOKEN = -1


@dataclass(kw_only=True)
class Generation:
    """Iterate over it once, for the tokens up to and without the one that ends the text.

    Text that is left at the end comes with ``NO_TOKEN``.
    """

    llm: LLM
    prompt: Sequence[int]
    sampler: Sampler
    seed: int | None
    max_tokens: int
    stop: Sequence[str] = ()
    logprobs: int | None = None
    of_prompt: bool = False
    """Whether the prompt's log-probabilities are reported too."""
    endless: bool = False
    """Whether it goes on after end-of-text, whose tokens it gives."""
    criteria: StoppingCriteria | None = None
    lora: LoRARequest | None = None
    earlier: Sequence[int] = ()
    """Tokens of the prompt that were generated, for penalties."""
    on_end: Callable[[Sequence[int]], None] = lambda _: None
    """Gets the tokens that were read when the output ends, or is left: as in llama.cpp, not the last one drawn."""
    finish_reason: str = "length"
    tokens: list[int] = field(default_factory=list)
    """The tokens given so far."""

    def __post_init__(self) -> None:
        """Make the request. Raises ``InvalidRequestError`` before anything runs."""
        sampler = self.sampler
        form = None if sampler.grammar is None else sampler.grammar.structured
        params = SamplingParams(
            max_tokens=self.max_tokens,
            temperature=sampler.engine_temperature,
            seed=self.seed,
            stop=tuple(self.stop),
            logprobs=self.logprobs,
            prompt_logprobs=self.logprobs if self.of_prompt else None,
            ignore_eos=self.endless and form is None,
            structured=form,
        )
        # A caller's function may count its calls: it sees each row once, in order, only where nothing is drafted.
        alone = bool(sampler.logits_processor) or self.criteria is not None
        plain = replace(self.llm.speculation, draft="none", prediction=None) if alone else None
        request = self.llm.request(self.prompt, params, plain, lora_request=self.lora)
        self.request = request
        self._rows: SampledRows | None = None
        if sampler.changes_rows or self.criteria is not None:
            size = self.llm.engine.vocab_size
            self._rows = SampledRows(sampler, size, self.prompt, request.constraint, self.earlier)
            request.constraint = self._rows

    def __iter__(self) -> Generator[StepOutput]:
        steps, at_end = self.llm.stream(self.request), False
        try:
            for step in steps:
                if self._is_stopped():
                    self.finish_reason = "stop"
                    return
                if step.finish_reason is not None:
                    self.finish_reason = step.finish_reason
                if step.finish_reason == "stop" and step.token_id in self.request.stop_ids and not self.endless:
                    at_end = True
                    if step.text:  # text that was held back
                        yield replace(step, token_id=NO_TOKEN, logprobs=None)
                    return
                self.tokens.append(step.token_id)
                yield step
        finally:
            self.on_end([*self.prompt, *(self.tokens if at_end else self.tokens[:-1])])
            steps.close()  # type: ignore[attr-defined]  # a generator: the request is aborted

    def _is_stopped(self) -> bool:
        """Whether the caller's criterion ends the output before the token at hand."""
        if self.criteria is None:
            return False
        assert self._rows is not None
        seen: Any = np.array([*self.prompt, *self.tokens], np.intc)
        assert self._rows.row is not None
        return bool(self.criteria(seen, self._rows.row))
