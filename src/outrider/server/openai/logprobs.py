"""Log-probabilities in OpenAI's two shapes: parallel lists for completions, objects for chats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outrider.engine.request import StepOutput
from outrider.tokenizer.tokenizer import Tokenizer

LOWEST = -9999.0  # JSON has no infinity


def chat_logprobs(steps: Sequence[StepOutput], tokenizer: Tokenizer, top: int) -> list[dict[str, Any]]:
    """An object for each token, with its ``top`` most likely alternatives, best first."""
    entries = []
    for step in steps:
        values = step.logprobs or {}
        best = sorted(values.items(), key=lambda item: -item[1])[:top]
        entry = _chat_token(tokenizer, step.token_id, values[step.token_id])
        entries.append(entry | {"top_logprobs": [_chat_token(tokenizer, i, value) for i, value in best]})
    return entries


def _chat_token(tokenizer: Tokenizer, token_id: int, value: float) -> dict[str, Any]:
    return {
        "token": tokenizer.token_text(token_id),
        "logprob": max(value, LOWEST),
        "bytes": list(tokenizer.token_bytes(token_id)),
    }


def llama_cpp_logprobs(steps: Sequence[StepOutput], tokenizer: Tokenizer, top: int) -> list[dict[str, Any]]:
    """As ``chat_logprobs``, with ids, as llama.cpp has it."""
    entries = []
    for step in steps:
        values = step.logprobs or {}
        best = sorted(values.items(), key=lambda item: -item[1])[:top]
        entry = {"id": step.token_id} | _chat_token(tokenizer, step.token_id, values[step.token_id])
        entries.append(entry | {"top_logprobs": [{"id": i} | _chat_token(tokenizer, i, value) for i, value in best]})
    return entries


class CompletionLogprobs:
    """Parallel lists of tokens, which may be made piece by piece; offsets go on where they ended.

    ``top_logprobs`` has the ``top`` most likely tokens and the one that was taken, as OpenAI has it. Tokens that
    are parts of characters may share a text; the likelier one is shown then.
    """

    def __init__(self, tokenizer: Tokenizer, top: int) -> None:
        self._tokenizer, self._top = tokenizer, top
        self._offset = 0

    def lists(self, tokens: Sequence[tuple[int, Mapping[int, float] | None]]) -> dict[str, Any]:
        """(token, log-probabilities) in order; None for the first token of all, which nothing predicts."""
        texts, values, tops, offsets = [], [], [], []
        for token_id, known in tokens:
            text = self._tokenizer.token_text(token_id)
            texts.append(text)
            offsets.append(self._offset)
            self._offset += len(text)
            values.append(None if known is None else max(known[token_id], LOWEST))
            tops.append(None if known is None else self._best(token_id, known))
        return {"tokens": texts, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}

    def _best(self, token_id: int, known: Mapping[int, float]) -> dict[str, float]:
        ranked = sorted(known.items(), key=lambda item: -item[1])
        kept = [i for i, _ in ranked[: self._top]]
        best: dict[str, float] = {}
        for i in [*kept, *([] if token_id in kept else [token_id])]:
            best.setdefault(self._tokenizer.token_text(i), max(known[i], LOWEST))
        return best
