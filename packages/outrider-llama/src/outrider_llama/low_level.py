"""Tokens one by one: ``generate``, and ``eval`` and ``sample``."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import partial

from outrider.errors import InvalidRequestError
from outrider_llama.base import LlamaBase
from outrider_llama.generation import Generation
from outrider_llama.llama_grammar import LlamaGrammar
from outrider_llama.processors import LogitsProcessor, StoppingCriteria
from outrider_llama.sampler import Sampler


class LowLevel(LlamaBase):
    """The calls below completions."""

    def generate(
        self,
        tokens: Sequence[int],
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        reset: bool = True,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        penalize_nl: bool = True,
        logits_processor: Sequence[LogitsProcessor] | None = None,
        stopping_criteria: StoppingCriteria | None = None,
        grammar: LlamaGrammar | None = None,
    ) -> Generator[int, Sequence[int] | None, None]:
        """Tokens that follow ``tokens``, past end-of-text, until the context is full or the caller stops.

        ``reset=False`` continues the tokens that were read last. Tokens that are sent come after the last one given;
        with a grammar that raises ``InvalidRequestError``.
        """
        sampler = Sampler.of(locals(), last_n=self.last_n_tokens_size)
        prompt = [*(() if reset else self.eval_tokens), *tokens]
        return self._generate(prompt, partial(self._generation, sampler=sampler, criteria=stopping_criteria))

    def _generate(
        self, prompt: list[int], start: Callable[..., Generation]
    ) -> Generator[int, Sequence[int] | None, None]:
        earlier: list[int] = []  # generated before tokens were sent
        while True:
            generation = start(prompt, max_tokens=None, endless=True, earlier=earlier, on_end=self._remember)
            sent: Sequence[int] | None = None
            with closing(iter(generation)) as steps:
                for step in steps:
                    sent = yield step.token_id
                    if sent:
                        break
            if not sent:
                return
            if generation.sampler.grammar is not None:
                raise InvalidRequestError("tokens cannot be sent to an output with a grammar: leave one out")
            prompt, earlier = [*prompt, *generation.tokens, *sent], [*earlier, *generation.tokens]

    def eval(self, tokens: Sequence[int]) -> None:
        """Append tokens to those read so far. The model runs over them when the next one is asked for.

        Raises ``ValueError`` if they do not fit the context.
        """
        together = [*self.eval_tokens, *tokens]
        if len(together) > self.n_ctx():
            raise ValueError(f"Requested tokens ({len(together)}) exceed context window of {self.n_ctx()}")
        self._remember(together)

    def sample(
        self,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_eta: float = 0.1,
        mirostat_tau: float = 5.0,
        penalize_nl: bool = True,
        logits_processor: Sequence[LogitsProcessor] | None = None,
        grammar: LlamaGrammar | None = None,
        idx: int | None = None,
    ) -> int:
        """A token after those read so far, or after the one at ``idx``. It is not read: ``eval`` it to go on.

        As in llama-cpp-python, each call begins its penalties and its grammar anew.
        """
        sampler = Sampler.of(locals(), last_n=self.last_n_tokens_size)
        read = self.eval_tokens if idx is None else self.eval_tokens[: idx + 1]
        (step,) = self._generation(read, max_tokens=1, sampler=sampler, endless=True)
        return step.token_id
