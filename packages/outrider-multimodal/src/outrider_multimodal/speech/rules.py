"""Whisper's rules for the next token: time stamps come in pairs, never decrease, and win if likelier in sum."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from outrider_multimodal.speech.vocabulary import SpeechVocabulary


class SpeechConstraint:
    """A ``RowConstraint``: a pure function of the output and its next row of logits, so drafts change nothing.

    ::

        <|0.00|> text text <|2.40|>  <|2.40|> text <|5.00|>  <end>
        begins ≤ 1 s       ends, then the next begins, not before
    """

    def __init__(self, vocabulary: SpeechVocabulary, *, timestamps: bool = True) -> None:
        self._v, self._timestamps = vocabulary, timestamps
        base = np.ones(vocabulary.size, dtype=np.bool_)
        base[[token for token in vocabulary.suppressed if token < vocabulary.size]] = False
        base[vocabulary.no_timestamps] = False
        if not timestamps:
            base[vocabulary.first_stamp :] = False
        base[vocabulary.end] = True
        self._base = base

    def mask(self, output: Sequence[int]) -> NDArray[np.bool_] | None:
        """As ``Constraint.mask``."""
        v, count = self._v, len(output)
        if count and output[-1] == v.end:
            return None
        allowed = self._base.copy()
        if not count:
            allowed[list(v.suppressed_first)] = False
            if self._timestamps:
                allowed[: v.first_stamp] = False
                allowed[v.first_stamp + v.max_initial_stamp + 1 :] = False
            return allowed
        if not self._timestamps:
            return allowed
        after_stamp = output[-1] >= v.first_stamp
        after_pair = after_stamp and (count < 2 or output[-2] >= v.first_stamp)
        if after_pair:
            allowed[v.first_stamp :] = False  # the text of a segment
        elif after_stamp:
            allowed[: v.end] = False  # the next segment's stamp, or the end
        latest = next((token for token in reversed(output) if token >= v.first_stamp), None)
        if latest is not None:
            begins = after_stamp and not after_pair  # a segment may begin at the last one's end, but not end there
            allowed[v.first_stamp : latest if begins else latest + 1] = False
        return allowed

    def forbid_(self, logits: NDArray[np.float32], output: Sequence[int]) -> None:
        """Allow only time stamps if their summed probability exceeds that of every other token."""
        if not self._timestamps:
            return
        first = self._v.first_stamp
        stamps, most = logits[first:], logits[:first].max()
        likeliest = stamps.max(initial=-np.inf)
        if likeliest == -np.inf:
            return
        together = likeliest + np.log(np.exp(stamps - likeliest, dtype=np.float32).sum(dtype=np.float32))
        if together > most:
            logits[:first] = -np.inf
