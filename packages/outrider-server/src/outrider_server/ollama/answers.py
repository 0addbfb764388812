"""Answers as Ollama writes them, whole or a line a step."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from outrider.engine.request import StepOutput
from outrider_server.answer.parsed import ParsedCall
from outrider_server.answer.parser import AnswerPart
from outrider_server.generation import new_id
from outrider_server.http.errors import ApiError
from outrider_server.http.stream import Chunk, JsonLines
from outrider_server.openai import statistics
from outrider_server.openai.chat_answer import ChatRun
from outrider_server.openai.logprobs import chat_logprobs


def ollama_error(error: ApiError) -> dict[str, Any]:
    """``{"error": message}``. The message names the field at fault."""
    return {"error": error.short_message}


LINES = JsonLines(media_type="application/x-ndjson", ping=b" ", failure=ollama_error)


def now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


@dataclass
class OllamaResponseBuilder(ChatRun):
    """Writes the answer to ``/api/chat`` (``chat``) or ``/api/generate``."""

    chat: bool = True
    _calls: int = 0  # sent so far

    def full(self) -> dict[str, Any]:
        return self._line(self.whole(), self.generation.steps[0]) | self._end()

    async def chunks(self) -> AsyncGenerator[Chunk]:
        """A line for each step that adds something, and one at the end."""
        async with aclosing(self.parsed()) as parsed:
            async for steps, parts in parsed:
                if parts or self.body.logprobs:
                    yield self._line(parts, steps) | {"done": False}
        yield self._line([], []) | self._end()

    def _line(self, parts: Sequence[AnswerPart], steps: Sequence[StepOutput]) -> dict[str, Any]:
        text = "".join(part.text for part in parts if part.kind == "text")
        thinking = "".join(part.text for part in parts if part.kind == "thinking")
        found = enumerate((part.call for part in parts if part.call is not None), self._calls)
        calls = [_call(call, i) for i, call in found]
        self._calls += len(calls)
        line: dict[str, Any] = {"model": self.generation.model, "created_at": now()}
        own = {"thinking": thinking} if thinking else {}
        if self.chat:
            line["message"] = {"role": "assistant", "content": text} | own | ({"tool_calls": calls} if calls else {})
        else:
            line |= {"response": text} | own
        if self.body.logprobs and steps:
            top = self.body.top_logprobs or 0
            line["logprobs"] = chat_logprobs(steps, self.service.tokenizer, top)
        return line

    def _end(self) -> dict[str, Any]:
        """How it ended, and how long it took: in nanoseconds, the wait for a place included in the total alone."""
        request, requests = self.generation.requests[0], self.generation.requests
        stats = request.stats
        times = [stats.queue_s + stats.prefill_s + stats.decode_s, 0.0, stats.prefill_s, stats.decode_s]
        total, load, reading, writing = (int(1e9 * seconds) for seconds in times)
        return {
            "done": True,
            "done_reason": request.finish_reason,
            "total_duration": total,
            "load_duration": load,
            "prompt_eval_count": stats.prompt_tokens,
            "prompt_eval_duration": reading,
            "eval_count": stats.completion_tokens,
            "eval_duration": writing,
            "metrics": statistics.metrics(requests),
            "timings": statistics.timings(requests),
        }


def _call(call: ParsedCall, index: int) -> dict[str, Any]:
    return {"id": new_id("call"), "function": {"index": index, "name": call.name, "arguments": call.as_object}}
