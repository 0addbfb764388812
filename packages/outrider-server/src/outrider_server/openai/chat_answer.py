"""The answer to a conversation, read from its sequences as text, thinking and tool calls, in OpenAI's words."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from outrider.engine.request import StepOutput
from outrider_server.answer.formats import BARE, HEADER_TOKENS, AnswerFormat
from outrider_server.answer.harmony import HarmonyParser
from outrider_server.answer.parsed import argument_schemas
from outrider_server.answer.parser import AnswerParser, AnswerPart, UpToFirstCall
from outrider_server.generation import Generation, new_id
from outrider_server.http.stream import Chunk
from outrider_server.openai.logprobs import chat_logprobs, token_fields
from outrider_server.openai.schema.chat import ChatRequest
from outrider_server.openai.statistics import envelope, running_usage, usage_and_timings, wants_usage
from outrider_server.service import Service


@dataclass
class ChatRun:
    """The sequences that answer a conversation, and the parsers of their texts.

    Each API writes the answer in its own words with a subclass that is a ``ResponseBuilder``.
    """

    service: Service
    generation: Generation
    body: ChatRequest
    form: AnswerFormat
    with_tools: bool  # the model was told of tools

    def num_thinking_tokens(self, index: int = 0) -> int:
        """Tokens of one output up to the end of its thinking."""
        tokenizer, request = self.service.tokenizer, self.generation.requests[index]
        markers, output = self.form.thinking_ids, list(request.output)
        if markers is None:
            return 0
        if output[:1] != [markers[0]] and not self.form.begins_thinking(tokenizer, request.prompt):
            return 0
        begun = tokenizer.decode(output[:HEADER_TOKENS], skip_special_tokens=False) if self.form.harmony else ""
        if begun and "analysis" not in begun.partition("<|message|>")[0]:
            return 0
        return output.index(markers[1]) + 1 if markers[1] in output else len(output)

    async def parsed(self) -> AsyncGenerator[tuple[list[StepOutput], list[AnswerPart]]]:
        """The steps of the first sequence as they come, each burst with the parts that it completes."""
        parser = self.parser()
        async with aclosing(self.generation.bursts()) as bursts:
            async for _, steps in bursts:
                text, end = "".join(step.text for step in steps), steps[-1].finish_reason is not None
                yield steps, parser.push(text, end=end)

    def whole(self) -> list[AnswerPart]:
        """The parts of the first sequence, which has ended."""
        return self.parser().push("".join(step.text for step in self.generation.steps[0]), end=True)

    def parser(self, index: int = 0) -> AnswerParser | UpToFirstCall:
        """A parser for one sequence's text."""
        parser = self._parser(index)
        return UpToFirstCall(parser) if self.body.parallel_tool_calls is False else parser

    def _parser(self, index: int) -> AnswerParser:
        tokenizer, form, tools = self.service.tokenizer, self.form, None
        prompt = self.generation.requests[index].prompt
        forced = self.body.tool_choice not in (None, "auto", "none")  # then it is bare JSON
        if form.harmony:
            return HarmonyParser(form.tail(tokenizer, prompt), tools=self.with_tools, forced=forced)
        if self.with_tools:
            tools = BARE if forced else form.tools
        return AnswerParser(
            form.thinking,
            tools,
            wrapper=form.wrapper,
            inside_thinking=form.begins_thinking(tokenizer, prompt),
            schemas=argument_schemas(self.body.tools or ()),
        )


@dataclass
class _ChoiceState:
    """The state of one choice's answer."""

    parser: AnswerParser | UpToFirstCall
    opened: bool = False  # its first chunk, with the role, is out
    calls: int = 0

    def push(self, text: str, *, end: bool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """(texts to show, by field; tool calls that are now complete), given the text of one step."""
        parts = self.parser.push(text, end=end)
        texts: dict[str, Any] = {}
        if thinking := _joined(parts, "thinking"):
            texts["reasoning_content"] = thinking
        if content := _joined(parts, "text"):
            texts["content"] = content
        fresh = [part.call for part in parts if part.call is not None]
        calls = [
            {
                "index": index,
                "id": call.id or new_id("call"),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for index, call in enumerate(fresh, self.calls)
        ]
        self.calls += len(calls)
        return texts, calls


def _joined(parts: Sequence[AnswerPart], kind: str) -> str:
    return "".join(part.text for part in parts if part.kind == kind)


@dataclass
class ChatResponseBuilder(ChatRun):
    """Writes the answer to a chat completion, whole (``full``) or streamed (``chunks``)."""

    _choices: dict[int, _ChoiceState] = field(default_factory=dict)

    def full(self) -> dict[str, Any]:
        requests = self.generation.requests
        choices = [self._choice(index) for index in range(len(requests))]
        return envelope(self.generation, "chat.completion") | {"choices": choices} | self._statistics()

    async def chunks(self) -> AsyncGenerator[Chunk]:
        """The role, then an event for each step of each choice; the last has the statistics, or one of its own."""
        with_usage = wants_usage(self.body)
        begin = envelope(self.generation, "chat.completion.chunk")
        requests = self.generation.requests
        running = len(requests)
        async with aclosing(self.generation.bursts()) as bursts:
            async for index, steps in bursts:
                usage = running_usage(self.body, self.generation, len(requests))
                if not self._state(index).opened:
                    self._state(index).opened = True
                    yield begin | usage | {"choices": [self._first_delta(index)]}
                for choice in self._deltas(index, steps):
                    running -= choice["finish_reason"] is not None
                    end = {} if running or with_usage else usage_and_timings(requests, len(requests), usage=False)
                    yield begin | usage | {"choices": [choice]} | end
        if with_usage:
            yield begin | {"choices": []} | self._statistics()

    def _statistics(self) -> dict[str, Any]:
        """Usage, with the tokens of thinking where there are some, metrics and timings."""
        requests = self.generation.requests
        fields = usage_and_timings(requests, len(requests))
        if thinking := sum(map(self.num_thinking_tokens, range(len(requests)))):
            fields["usage"].setdefault("completion_tokens_details", {})["reasoning_tokens"] = thinking
        return fields

    def _state(self, index: int) -> _ChoiceState:
        if index not in self._choices:
            self._choices[index] = _ChoiceState(self.parser(index))
        return self._choices[index]

    def _choice(self, index: int) -> dict[str, Any]:
        request, steps = self.generation.requests[index], self.generation.steps[index]
        texts, calls = self._state(index).push("".join(step.text for step in steps), end=True)
        message: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None} | texts
        if calls:
            message |= {"content": message["content"] or None, "tool_calls": [_without_index(call) for call in calls]}
        choice = {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(steps),
            "finish_reason": "tool_calls" if calls and request.finish_reason == "stop" else request.finish_reason,
            "seed": request.seed,
        }
        return choice | token_fields(self.service.tokenizer, self.body, request, steps, opening=True)

    def _first_delta(self, index: int) -> dict[str, Any]:
        delta = {"role": "assistant", "content": "", "refusal": None}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        request = self.generation.requests[index]
        extra = token_fields(self.service.tokenizer, self.body, request, [], opening=True)
        return choice | {"seed": request.seed} | extra

    def _deltas(self, index: int, steps: Sequence[StepOutput]) -> list[dict[str, Any]]:
        """The events of one step: its text and calls, then, if it is the last, the finish reason."""
        request, state = self.generation.requests[index], self._state(index)
        finish = steps[-1].finish_reason
        texts, calls = state.push("".join(step.text for step in steps), end=finish is not None)
        extra = token_fields(self.service.tokenizer, self.body, request, steps, opening=False)
        delta: dict[str, Any] = texts or ({} if calls else {"content": ""})
        if calls:
            delta["tool_calls"] = calls
        deltas = []
        logprobs = self._logprobs(steps)
        if texts or calls or logprobs or extra:
            deltas.append({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None} | extra)
        if finish is not None:
            reason = "tool_calls" if state.calls and finish == "stop" else finish
            deltas.append({"index": index, "delta": {}, "logprobs": None, "finish_reason": reason})
        return deltas

    def _logprobs(self, steps: Sequence[StepOutput]) -> dict[str, Any] | None:
        if not self.body.logprobs:
            return None
        content = chat_logprobs(steps, self.service.tokenizer, self.body.top_logprobs or 0)
        return {"content": content, "refusal": None}


def _without_index(call: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in call.items() if key != "index"}
