"""What a request wants of the rows of its prompt: log-probabilities, and its embedding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.verify.arrays import Array, Floats, host
from outrider.verify.logprobs import TokenLogprobs

_LEAST = 1e-12  # length that an embedding of zeros is taken to have


class PromptReport:
    """Filled in as a prompt is read, piece by piece. The embedding is the mean of the target's last hidden states."""

    def __init__(self, prompt: Sequence[int], alternatives: int | None) -> None:
        """``alternatives``: likeliest tokens at each place whose log-probabilities are wanted; None: no place's."""
        self._prompt, self._alternatives = prompt, alternatives
        self.logprobs = TokenLogprobs()
        """Of the prompt's tokens but the first."""
        self.final_norm: Callable[[Any], Any] | None = None
        """The target's, where the prompt's embedding is wanted."""
        self.hidden_sum: NDArray[np.float64] | None = None
        """float64 [d], of the tokens so far."""

    @property
    def wants_logprobs(self) -> bool:
        """Whether rows that are still to be read need logits."""
        return self._alternatives is not None and len(self.logprobs) < len(self._prompt) - 1

    @property
    def wants_embedding(self) -> bool:
        return self.final_norm is not None

    def add_logits(self, start: int, logits: Array) -> None:
        """``logits`` [count, vocab] after the prompt's tokens from ``start`` on.

        Raises ``NumericalError``, and has changed nothing then.
        """
        known = len(self.logprobs) - start  # rows, after a preemption
        following = self._prompt[len(self.logprobs) + 1 : start + 1 + len(logits)]
        if following:
            self.logprobs.add(logits[known : known + len(following)], following, self._alternatives or 0)

    def add_features(self, start: int, features: Array, hidden_size: int) -> None:
        """``features`` [count, layers * d] of the tokens from ``start`` on; those of the last layer are the last.

        A prompt that is read again, after a preemption, begins its sum again. Sums are float64, so that it hardly
        matters in which pieces a prompt was read.
        """
        last = features[: len(self._prompt) - start, -hidden_size:]
        if self.final_norm is None or len(last) == 0:
            return
        own = host(self.final_norm(last)).astype(np.float64).sum(0)
        self.hidden_sum = own if start == 0 or self.hidden_sum is None else self.hidden_sum + own

    def embedding(self) -> Floats:
        """float32 [d], of length 1, of a prompt that has been read."""
        assert self.hidden_sum is not None, "no embedding was asked for"
        length = max(float(np.linalg.norm(self.hidden_sum)), _LEAST)
        return (self.hidden_sum / length).astype(np.float32)
