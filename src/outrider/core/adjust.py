"""The options that change logits before temperature: penalties, bias, allowed and banned tokens, minimum length."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.config import SamplingParams


def changes_logits(params: SamplingParams, output_length: int) -> bool:
    """Whether any option of this module acts on a row that follows ``output_length`` generated tokens."""
    return (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
        or bool(params.logit_bias)
        or params.allowed_token_ids is not None
        or bool(params.banned_token_ids)
        or output_length < params.min_tokens
    )


def penalise_(row: Tensor, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]) -> None:
    """Repetition, presence and frequency penalties, then logit bias, in place on float32 [vocab].

    Repetition divides positive and multiplies negative logits (Keskar et al. 2019, section 4.1).
    """
    if params.repetition_penalty != 1.0:
        seen = torch.tensor([*prompt, *output], dtype=torch.int64, device=row.device)
        scores = row[seen]  # duplicates are harmless: each is written with the same value
        row[seen] = torch.where(scores > 0, scores / params.repetition_penalty, scores * params.repetition_penalty)
    if params.presence_penalty != 0.0 or params.frequency_penalty != 0.0:
        counts = Counter(output)
        tokens = torch.tensor(list(counts), dtype=torch.int64, device=row.device)
        times = torch.tensor(list(counts.values()), dtype=torch.float32, device=row.device)
        row[tokens] -= params.presence_penalty + params.frequency_penalty * times
    for token, bias in params.logit_bias.items():
        row[token] += bias


def restrict_(row: Tensor, params: SamplingParams, output: Sequence[int], stop_ids: Sequence[int]) -> None:
    """Allowed and banned tokens and the minimum length, in place on float32 [vocab]."""
    if params.allowed_token_ids is not None:
        excluded = torch.ones_like(row, dtype=torch.bool)
        excluded[list(params.allowed_token_ids)] = False
        row.masked_fill_(excluded, -math.inf)
    banned = list(params.banned_token_ids)
    if len(output) < params.min_tokens:
        banned += [*stop_ids, *params.stop_token_ids]
    row[banned] = -math.inf
