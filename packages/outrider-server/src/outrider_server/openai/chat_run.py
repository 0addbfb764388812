"""A conversation on its way to an answer: checked, rendered, started. All chat endpoints, of whatever API, share it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from outrider.config.structured import StructuredOutput
from outrider.input_processor import Prompt
from outrider_server.answer.formats import BARE, PLAIN, AnswerFormat
from outrider_server.answer.parser import AnswerParser
from outrider_server.answer.tool_calls import argument_schemas
from outrider_server.generation import Generation
from outrider_server.http.errors import invalid
from outrider_server.openai import options
from outrider_server.openai.conversation import chat_prompt, shows_image
from outrider_server.openai.schema.chat import ChatRequest, NamedTool
from outrider_server.openai.structured_output import field_names, forced_tool_call, structured_output
from outrider_server.service import Service


@dataclass
class ChatRun:
    """The sequences that answer a conversation, and how to read what they say."""

    service: Service
    generation: Generation
    body: ChatRequest
    form: AnswerFormat
    with_tools: bool  # the model was told of tools

    def num_thinking_tokens(self, index: int = 0) -> int:
        """Tokens of one output up to the end of its thinking."""
        tokenizer, request = self.service.tokenizer, self.generation.requests[index]
        markers, output = self.form.thinking_tokens(tokenizer), list(request.output)
        if markers is None:
            return 0
        if output[:1] != [markers[0]] and not self.form.begins_thinking(tokenizer, request.prompt):
            return 0
        return output.index(markers[1]) + 1 if markers[1] in output else len(output)

    def parser(self, index: int = 0) -> AnswerParser:
        """Of one sequence's text."""
        tokenizer, form, tools = self.service.tokenizer, self.form, None
        if self.with_tools:
            forced = self.body.tool_choice not in (None, "auto", "none")  # then it is bare JSON
            tools = BARE if forced else form.tools
        return AnswerParser(
            form.thinking,
            tools,
            inside_thinking=form.begins_thinking(tokenizer, self.generation.requests[index].prompt),
            schemas=argument_schemas(self.body.tools or ()),
        )


async def start_chat(service: Service, body: ChatRequest, tenant: str, *, id_prefix: str = "chatcmpl") -> ChatRun:
    """Check the request and start its sequences. Raises ApiError, or what ``Generation.start`` raises."""
    with_tools = check_fields(service, body)

    def tokenize() -> list[Prompt]:
        return [chat_prompt(service, body, tools=with_tools)]

    form = AnswerFormat.of(service.tokenizer)
    images = any(map(shows_image, body.messages))
    return await _start(
        service, body, tenant, tokenize, form, with_tools=with_tools, with_images=images, id_prefix=id_prefix
    )


async def start_raw(service: Service, body: ChatRequest, prompt: str, tenant: str) -> ChatRun:
    """As ``start_chat``, for a prompt that is read as it is written, with ``body``'s options."""
    check_fields(service, body)
    return await _start(service, body, tenant, lambda: [service.encode(prompt)], PLAIN, id_prefix="cmpl")


async def _start(
    service: Service,
    body: ChatRequest,
    tenant: str,
    tokenize: Callable[[], Sequence[Prompt]],
    form: AnswerFormat,
    *,
    with_tools: bool = False,
    with_images: bool = False,
    id_prefix: str,
) -> ChatRun:
    model = service.check_model(body.model)
    limits = [body.max_completion_tokens, body.max_tokens, service.settings.max_tokens, service.max_seq_len]
    params = await service.off_loop.run_if_large(
        lambda: options.sampling(
            body,
            max_tokens=min(limit for limit in limits if limit is not None),
            n=body.n or 1,
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            structured=_behind_thinking(service, _structured_output(body), form),
        )
    )
    with field_names(body):
        generation = await Generation.start(
            service,
            tokenize,
            params,
            options.speculation(body, service.engine.llm.speculation),
            with_images=with_images,
            id_prefix=id_prefix,
            model=model,
            reports_drafts=bool(body.draft_details),
            shown_ids=form.marker_ids(service.tokenizer, tools=with_tools),
            **options.scheduling(service, body, tenant),
        )
    return ChatRun(service, generation, body, form, with_tools)


def _structured_output(body: ChatRequest) -> StructuredOutput | None:
    """What the answer must match: the form the request gives, or a forced tool call."""
    wanted = structured_output(body, body.response_format)
    if body.tool_choice in (None, "auto", "none"):
        return wanted
    if wanted is not None:
        raise invalid("a forced tool call leaves no room for another form: give one of them", "tool_choice")
    name = body.tool_choice.function.name if isinstance(body.tool_choice, NamedTool) else None
    return forced_tool_call(body.tools or (), name)


def _behind_thinking(service: Service, wanted: StructuredOutput | None, form: AnswerFormat) -> StructuredOutput | None:
    """The form of what follows the thinking, where the model thinks."""
    if wanted is None or form.thinking_tokens(service.tokenizer) is None:
        return wanted
    return replace(wanted, thinking=form.thinking)


def check_fields(service: Service, body: ChatRequest) -> bool:
    """Whether the model is told of tools. Raises ApiError for fields that contradict each other."""
    n, limit = body.n or 1, service.settings.max_n
    if n > limit:
        raise invalid(f"n={n} outputs of one prompt: ask for at most {limit}", "n")
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("top_logprobs needs logprobs: set it to true", "top_logprobs")
    if None not in (body.max_tokens, body.max_completion_tokens) and body.max_tokens != body.max_completion_tokens:
        raise invalid("max_tokens and max_completion_tokens differ: give one", "max_tokens")
    options.check_stream_options(body)
    if body.parallel_tool_calls is False and body.tools:
        raise invalid("parallel_tool_calls=false is not supported: leave it out", "parallel_tool_calls", "unsupported")
    choice = body.tool_choice
    if choice in (None, "auto", "none"):
        if choice == "auto" and not body.tools:
            raise invalid("tool_choice needs tools: give some, or leave it out", "tool_choice")
        return bool(body.tools) and choice != "none"
    if isinstance(choice, NamedTool):
        known = [tool.function.name for tool in body.tools or ()]
        if choice.function.name not in known:
            raise invalid(f"tool_choice names {choice.function.name[:64]!r}, which is not in tools", "tool_choice")
    if not body.tools:
        raise invalid("tool_choice needs tools: give some, or leave it out", "tool_choice")
    return True
