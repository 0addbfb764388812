"""Functions on logits and on outputs that callers bring, under llama-cpp-python's names."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

LogitsProcessor = Callable[[NDArray[np.intc], NDArray[np.float32]], NDArray[np.float32]]
"""From all tokens so far and a row of logits [vocab] to the row that is sampled; it may change the row in place."""
StoppingCriteria = Callable[[NDArray[np.intc], NDArray[np.float32]], bool]
"""Whether to stop, from the tokens before the last one and the logits [vocab] that it was drawn from."""


class LogitsProcessorList(list[LogitsProcessor]):
    """Processors that act one after the other."""

    def __call__(self, input_ids: NDArray[np.intc], scores: NDArray[np.float32]) -> NDArray[np.float32]:
        for processor in self:
            scores = processor(input_ids, scores)
        return scores


class StoppingCriteriaList(list[StoppingCriteria]):
    """Stops as soon as one of its criteria does."""

    def __call__(self, input_ids: NDArray[np.intc], logits: NDArray[np.float32]) -> bool:
        return any([criterion(input_ids, logits) for criterion in self])  # noqa: C419  (each is called)


class MinTokensLogitsProcessor:
    """Forbids end-of-text before ``min_tokens`` generated tokens. For one output: it remembers where that began."""

    def __init__(self, min_tokens: int, token_eos: int) -> None:
        self.min_tokens, self.token_eos = min_tokens, token_eos
        self.prompt_tokens: int | None = None

    def __call__(self, input_ids: NDArray[np.intc], scores: NDArray[np.float32]) -> NDArray[np.float32]:
        if self.prompt_tokens is None:
            self.prompt_tokens = len(input_ids)
        if len(input_ids) - self.prompt_tokens < self.min_tokens:
            scores[self.token_eos] = -np.inf
        return scores
