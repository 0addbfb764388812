"""Text completions as llama-cpp-python's dictionaries: whole, and in chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outrider_llama.generation import NO_TOKEN, Generation
from outrider_llama.llama_types import CompletionLogprobs, CreateCompletionResponse
from outrider_llama.vocabulary import Vocabulary


@dataclass(kw_only=True)
class Completion:
    """One call of ``create_completion``: read ``whole`` or ``chunks``, once."""

    generation: Generation
    vocabulary: Vocabulary
    prompt: str | Sequence[int]
    model: str
    echo: bool = False
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4()}")
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self) -> CreateCompletionResponse:
        """The completion when it has ended."""
        generation, entries = self.generation, LogprobEntries(self.vocabulary, 0 if self.echo else len(self.prompt))
        text = ""
        rows: list[tuple[int, Mapping[int, float] | None]] = []
        for step in generation:
            text += step.text
            if step.token_id != NO_TOKEN:
                rows.append((step.token_id, step.logprobs))
        if self.echo:
            assert isinstance(self.prompt, str)
            text = self.prompt + text
            rows = [*self._prompt_rows(), *rows]
        reported = None
        if generation.logprobs is not None:
            for token, row in rows:
                entries.add(token, row)
            reported = entries.report
        answer = self._answer(text, reported, generation.finish_reason)
        read, written = len(generation.prompt), len(generation.tokens)
        answer["usage"] = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
        return answer

    def chunks(self) -> Iterator[CreateCompletionResponse]:
        """The text as it comes; with log-probabilities, token by token. The last chunk has the reason of the end."""
        before = len(self.prompt)
        for step in self.generation:
            reported = None
            if step.logprobs is not None:
                entries = LogprobEntries(self.vocabulary, before)
                entries.add(step.token_id, step.logprobs)
                reported = entries.report
            before += len(step.text)
            if step.text or reported is not None:
                yield self._answer(step.text, reported, None)
        yield self._answer("", None, self.generation.finish_reason)

    def _answer(self, text: str, logprobs: CompletionLogprobs | None, finish_reason: Any) -> CreateCompletionResponse:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": [{"text": text, "index": 0, "logprobs": logprobs, "finish_reason": finish_reason}],
        }

    def _prompt_rows(self) -> list[tuple[int, Mapping[int, float] | None]]:
        """The prompt's tokens but a leading BOS, with their log-probabilities; the first of all has none."""
        prompt = self.generation.prompt
        rows = [None, *self.generation.request.prompt_report.logprobs]
        start = 1 if prompt[0] == self.vocabulary.bos else 0
        found = list(zip(prompt, rows, strict=False))[start:]
        return [(token, row if place else None) for place, (token, row) in enumerate(found)]


class LogprobEntries:
    """Log-probabilities of tokens in their order, as four lists."""

    def __init__(self, vocabulary: Vocabulary, offset: int) -> None:
        """``offset``: characters before the first token."""
        self._vocabulary, self._offset = vocabulary, offset
        self.report: CompletionLogprobs = {"tokens": [], "text_offset": [], "token_logprobs": [], "top_logprobs": []}

    def add(self, token: int, row: Mapping[int, float] | None) -> None:
        """A token and the row that has its log-probability and those of the likeliest; None: nothing is known."""
        text = self._vocabulary.text([token])
        self.report["tokens"].append(text)
        self.report["text_offset"].append(self._offset)
        self._offset += len(text)
        self.report["token_logprobs"].append(None if row is None else row[token])
        if row is None:
            self.report["top_logprobs"].append(None)
            return
        best = sorted(row.items(), key=lambda item: -item[1])
        texts = {self._vocabulary.text([other]): value for other, value in best}
        self.report["top_logprobs"].append(texts | {text: row[token]})  # other tokens may have the same text
