"""Logits processors, applied before temperature: penalties, bias, allowed and banned tokens, minimum length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from outrider.config import SamplingParams


def changes_logits(params: SamplingParams, output_length: int) -> bool:
    """Whether any processor of this module changes the row after ``output_length`` generated tokens."""
    return (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
        or bool(params.logit_bias)
        or params.allowed_token_ids is not None
        or bool(params.banned_token_ids)
        or output_length < params.min_tokens
    )


def apply_penalties_(
    row: NDArray[np.float32], params: SamplingParams, prompt: Sequence[int], output: Sequence[int]
) -> None:
    """Apply repetition, presence and frequency penalties, then logit bias, in place on float32 [vocab].

    The repetition penalty divides positive and multiplies negative logits (Keskar et al. 2019, section 4.1).
    """
    if params.repetition_penalty != 1.0:
        seen = np.array([*prompt, *output], dtype=np.int64)
        scores = row[seen]  # with duplicates, which all write the same value
        penalty = np.float32(params.repetition_penalty)
        row[seen] = np.where(scores > 0, scores / penalty, scores * penalty)
    if params.presence_penalty != 0.0 or params.frequency_penalty != 0.0:
        counts = Counter(output)
        tokens = np.fromiter(counts.keys(), dtype=np.int64)
        times = np.fromiter(counts.values(), dtype=np.float32)
        row[tokens] -= params.presence_penalty + params.frequency_penalty * times
    for token, bias in params.logit_bias.items():
        row[token] += bias


def apply_masks_(
    row: NDArray[np.float32],
    params: SamplingParams,
    output: Sequence[int],
    stop_ids: Sequence[int],
    mask: NDArray[np.bool_] | None = None,
) -> None:
    """Apply a constraint's ``mask``, allowed and banned tokens and minimum length, in place on float32 [vocab].

    If the constraint allows only stop tokens, the minimum length is ignored.
    """
    if mask is not None:
        width = min(len(row), len(mask))  # the LM head may be padded, or smaller than the tokenizer's vocabulary
        np.putmask(row[:width], ~mask[:width], -np.inf)
        row[width:] = -np.inf
    if params.allowed_token_ids is not None:
        allowed = list(params.allowed_token_ids)
        kept = row[allowed]
        row.fill(-np.inf)
        row[allowed] = kept
    row[list(params.banned_token_ids)] = -np.inf
    if len(output) < params.min_tokens:
        stops = [*stop_ids, *params.stop_token_ids]
        kept = row[stops]
        row[stops] = -np.inf
        if mask is not None and row.max() == -np.inf:
            row[stops] = kept
