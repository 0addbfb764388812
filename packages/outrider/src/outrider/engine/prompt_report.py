"""Results from the rows of a request's prompt: log-probabilities, and the prompt's embedding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.verify.arrays import Array, Floats, host
from outrider.verify.logprobs import TokenLogprobs

_LEAST = 1e-12  # lower bound of an embedding's norm, for a division


class PromptReport:
    """Filled chunk by chunk as a prompt is read. The embedding is the mean of the target's last hidden states."""

    def __init__(self, prompt: Sequence[int], alternatives: int | None) -> None:
        """``alternatives``: likeliest tokens to report per position; None: report no log-probabilities."""
        self._prompt, self._alternatives = prompt, alternatives
        self.logprobs = TokenLogprobs()
        """The log-probabilities of the prompt's tokens but the first."""
        self.final_norm: Callable[[Any], Any] | None = None
        """The target's final norm if the prompt's embedding is requested; else None."""
        self.hidden_sum: NDArray[np.float64] | None = None
        """float64 [d]: the sum of the hidden states of the tokens so far."""

    @property
    def wants_logprobs(self) -> bool:
        """Whether the rows not read yet need logits."""
        return self._alternatives is not None and len(self.logprobs) < len(self._prompt) - 1

    @property
    def wants_embedding(self) -> bool:
        return self.final_norm is not None

    def add_logits(self, start: int, logits: Array) -> None:
        """Add ``logits`` [count, vocab] after the prompt's tokens from ``start`` on.

        Raises ``NumericalError`` before any change.
        """
        known = len(self.logprobs) - start  # rows added before a preemption
        following = self._prompt[len(self.logprobs) + 1 : start + 1 + len(logits)]
        if following:
            self.logprobs.add(logits[known : known + len(following)], following, self._alternatives or 0)

    def add_features(self, start: int, features: Array, hidden_size: int) -> None:
        """Add ``features`` [count, layers * d] of the tokens from ``start`` on; the last layer's are the last columns.

        A prompt that is read again after a preemption restarts its sum. Sums are float64, so that the chunks of a
        prompt hardly matter.
        """
        last = features[: len(self._prompt) - start, -hidden_size:]
        if self.final_norm is None or len(last) == 0:
            return
        own = host(self.final_norm(last)).astype(np.float64).sum(0)
        self.hidden_sum = own if start == 0 or self.hidden_sum is None else self.hidden_sum + own

    def embedding(self) -> Floats:
        """The embedding of a prompt that has been read: float32 [d], of norm 1."""
        assert self.hidden_sum is not None, "no embedding was asked for"
        length = max(float(np.linalg.norm(self.hidden_sum)), _LEAST)
        return (self.hidden_sum / length).astype(np.float32)
