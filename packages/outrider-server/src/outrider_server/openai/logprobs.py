"""Fields of answers about single tokens: log-probabilities (lists for completions, objects for chats) and origins."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from outrider.engine.request import Request, StepOutput
from outrider.tokenizer.tokenizer import Tokenizer
from outrider.verify.draft import DraftReport
from outrider_server.openai.schema.base import SamplingRequest

LOWEST = -9999.0  # JSON has no infinity

Row = tuple[int, Mapping[int, float] | None]
"""A token and its log-probabilities; None for the first token of all, which nothing predicts."""


def chat_logprobs(steps: Sequence[StepOutput], tokenizer: Tokenizer, top: int) -> Iterator[dict[str, Any]]:
    """An object for each token, with its ``top`` most likely alternatives, best first."""
    for step in steps:
        values = step.logprobs or {}
        best = sorted(values.items(), key=lambda item: -item[1])[:top]
        entry = _chat_token(tokenizer, step.token_id, values[step.token_id])
        yield entry | {"top_logprobs": [_chat_token(tokenizer, i, value) for i, value in best]}


def _chat_token(tokenizer: Tokenizer, token_id: int, value: float) -> dict[str, Any]:
    return {
        "token": tokenizer.token_text(token_id),
        "logprob": max(value, LOWEST),
        "bytes": list(tokenizer.token_bytes(token_id)),
    }


def llama_cpp_logprobs(steps: Sequence[StepOutput], tokenizer: Tokenizer, top: int) -> Iterator[dict[str, Any]]:
    """As ``chat_logprobs``, with ids, as llama.cpp has it."""
    for step in steps:
        values = step.logprobs or {}
        best = sorted(values.items(), key=lambda item: -item[1])[:top]
        entry = {"id": step.token_id} | _chat_token(tokenizer, step.token_id, values[step.token_id])
        yield entry | {"top_logprobs": [{"id": i} | _chat_token(tokenizer, i, value) for i, value in best]}


def prompt_rows(request: Request) -> Iterator[Row]:
    """The tokens of a prompt, of all but the first of which something is known."""
    return zip(request.prompt, chain((None,), request.prompt_report.logprobs), strict=True)


class CompletionLogprobs:
    """Parallel lists of tokens, which may be made piece by piece; offsets go on where they ended.

    ``top_logprobs`` has the ``top`` most likely tokens and the one that was taken, as OpenAI has it. Tokens that
    are parts of characters may share a text; the likelier one is shown then.
    """

    def __init__(self, tokenizer: Tokenizer, top: int) -> None:
        self._tokenizer, self._top = tokenizer, top
        self._offset = 0

    def lists(self, rows: Callable[[], Iterable[Row]]) -> dict[str, Any]:
        """The lists for ``rows()``, which is called twice: ``top_logprobs`` is an iterator, written row by row."""
        texts, values, offsets = [], [], []
        for token_id, known in rows():
            text = self._tokenizer.token_text(token_id)
            texts.append(text)
            offsets.append(self._offset)
            self._offset += len(text)
            values.append(None if known is None else max(known[token_id], LOWEST))
        tops = (None if known is None else self._best(token_id, known) for token_id, known in rows())
        return {"tokens": texts, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}

    def _best(self, token_id: int, known: Mapping[int, float]) -> dict[str, float]:
        ranked = sorted(known.items(), key=lambda item: -item[1])
        kept = [i for i, _ in ranked[: self._top]]
        best: dict[str, float] = {}
        for i in [*kept, *([] if token_id in kept else [token_id])]:
            best.setdefault(self._tokenizer.token_text(i), max(known[i], LOWEST))
        return best


def token_fields(
    tokenizer: Tokenizer, body: SamplingRequest, request: Request, steps: Sequence[StepOutput], *, opening: bool
) -> dict[str, Any]:
    """The fields of a choice that describe its tokens, if asked for: their ids, and where each came from."""
    fields: dict[str, Any] = {}
    if request.ranked is not None and math.isfinite(request.ranked.score):
        fields["score"] = request.ranked.score
    if body.return_token_ids:
        fields["token_ids"] = [step.token_id for step in steps]
        if opening:
            fields["prompt_token_ids"] = list(request.prompt)
    if body.token_details:
        fields["token_details"] = [
            {"id": step.token_id, "text": step.text, "origin": step.origin, "source": step.source} for step in steps
        ]
    if body.draft_details:
        drafts = [step.draft for step in steps if step.draft is not None]
        fields["draft_details"] = [_draft_fields(tokenizer, draft) for draft in drafts]
    return fields


def _draft_fields(tokenizer: Tokenizer, draft: DraftReport) -> dict[str, Any]:
    """One step's draft as JSON; scores, where the sources gave any, are their guesses at each node's chance."""
    return {
        "tokens": list(draft.tokens),
        "texts": [tokenizer.token_text(token) for token in draft.tokens],
        "parents": list(draft.parents),
        "sources": list(draft.sources),
        "scores": None if draft.scores is None else [round(score, 4) for score in draft.scores],
        "accepted": list(draft.path),
        "budget": draft.budget,
        "proposed": draft.proposed,
    }
