"""``/v1/chat/completions``: a conversation is checked, rendered and started here, whichever API it came by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from outrider.config.structured import StructuredOutput
from outrider.errors import InvalidRequestError
from outrider.tokenizer.chat_template import Rendered
from outrider_server import executors
from outrider_server.answer.formats import PLAIN, AnswerFormat, is_harmony
from outrider_server.answer.switches import effort_variables, own_id, takes_tools
from outrider_server.answer.telling import move_system_messages, tell_tools
from outrider_server.answer.writing import write_calls
from outrider_server.generation import Generation, Prompt, respond
from outrider_server.http.body_limits import check_texts
from outrider_server.http.context import tenant_of
from outrider_server.http.errors import invalid
from outrider_server.http.openapi import documented
from outrider_server.http.request_body import json_body
from outrider_server.models import service_of
from outrider_server.openai import options
from outrider_server.openai.chat_answer import ChatResponseBuilder, ChatRun
from outrider_server.openai.images import image_parts
from outrider_server.openai.schema.chat import ChatRequest, ChatResponse, ContentPart, Message, NamedTool
from outrider_server.service import Service

router = APIRouter()

Run = TypeVar("Run", bound=ChatRun)

RESERVED = {"messages", "tools", "add_generation_prompt", "documents"}
"""Variables of a chat template that ``chat_template_kwargs`` may not set."""


@router.post("/v1/chat/completions", **documented(ChatRequest, ChatResponse))
@router.post("/chat/completions", include_in_schema=False)
async def chat(request: Request, body: Annotated[ChatRequest, Depends(json_body(ChatRequest))]) -> Response:
    """Answer a conversation. With ``stream``, as server-sent events that end with ``[DONE]``."""
    service, padded = await service_of(request, body.model), options.wants_obfuscation(body)

    start = start_chat(service, body, tenant_of(request), ChatResponseBuilder)
    return await respond(request, start, stream=bool(body.stream), obfuscate=padded)


async def start_chat(
    service: Service,
    body: ChatRequest,
    tenant: str,
    make: Callable[[Service, Generation, ChatRequest, AnswerFormat, bool], Run],
    *,
    raw: str | None = None,
    id_prefix: str = "chatcmpl",
) -> Run:
    """Check the request and start its sequences. Raises ApiError, or any error of ``Generation.start``.

    Args:
        make: the kind of ``ChatRun`` that writes the answer.
        raw: a prompt that is read as it is written, in place of the rendered messages; only ``body``'s options count.
    """
    with_tools = check_fields(service, body)
    model = service.check_model(body.model)
    form = service.answer_format if raw is None else PLAIN
    limits = [body.max_completion_tokens, body.max_tokens, service.settings.max_tokens, service.max_seq_len]
    params = await service.executors.run_if_large(
        lambda: options.sampling(
            body,
            max_tokens=min(limit for limit in limits if limit is not None),
            n=body.n or 1,
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            structured=_structured_output(body, form),
        )
    )

    def tokenize() -> list[Prompt]:
        return [service.encode(raw) if raw is not None else chat_prompt(service, body, tools=with_tools)]

    with options.field_names(body):
        generation = await Generation.start(
            service,
            tokenize,
            params,
            options.speculation(body, service.engine.llm.speculation),
            with_images=raw is None and any(map(shows_image, body.messages)),
            id_prefix=id_prefix if raw is None else "cmpl",
            model=model,
            reports_drafts=bool(body.draft_details),
            shown_ids=form.tool_marker_ids if with_tools else form.thinking_marker_ids,
            **options.scheduling(service, body, tenant),
        )
    return make(service, generation, body, form, with_tools and raw is None)


def check_fields(service: Service, body: ChatRequest) -> bool:
    """Whether the model is told of tools. Raises ApiError for fields that contradict each other."""
    n, limit = body.n or 1, service.settings.limits.max_n
    if n > limit:
        raise invalid(f"n={n} outputs of one prompt: ask for at most {limit}", "n")
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("top_logprobs needs logprobs: set it to true", "top_logprobs")
    if None not in (body.max_tokens, body.max_completion_tokens) and body.max_tokens != body.max_completion_tokens:
        raise invalid("max_tokens and max_completion_tokens differ: give one", "max_tokens")
    options.check_stream_options(body)
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


def _structured_output(body: ChatRequest, form: AnswerFormat) -> StructuredOutput | None:
    """The form that the answer must have: the request's own, or a forced tool call; it follows any thinking."""
    wanted = options.structured_output(body, body.response_format)
    if body.tool_choice not in (None, "auto", "none"):
        if wanted is not None:
            raise invalid("a forced tool call leaves no room for another form: give one of them", "tool_choice")
        name = body.tool_choice.function.name if isinstance(body.tool_choice, NamedTool) else None
        wanted = options.forced_tool_call(body.tools or (), name)
    return wanted if wanted is None or form.thinking_tokens is None else replace(wanted, thinking=form.thinking_tokens)


# -- prompts -----------------------------------------------------------------------------------------------------------


def reading_executor(service: Service, messages: Sequence[Message] | None) -> executors.Run:
    """The executor that reads a conversation: those with images have one of their own."""
    images = any(map(shows_image, messages or ()))
    return service.executors.read_images if images else service.executors.run


def encode_messages(service: Service, body: Any, *, tools: bool = True) -> list[int]:
    """The prompt of a conversation as ids, the placeholders of its images included."""
    prompt = chat_prompt(service, body, tools=tools)
    return prompt if isinstance(prompt, list) else service.read_images(prompt).token_ids


def chat_prompt(service: Service, body: Any, *, tools: bool = True) -> Prompt:
    """The prompt of a conversation as ``LLM.requests`` takes it; ``tools=False`` leaves its tools unmentioned."""
    images: list[bytes] = []
    rendered = render_messages(service, body, images, tools=tools)
    ids = service.tokenizer.encode_rendered(rendered, parse_special=bool(body.parse_special))
    return {"prompt_token_ids": ids, "multi_modal_data": {"image": images}} if images else ids


def render_messages(service: Service, body: Any, images: list[bytes] | None = None, *, tools: bool = True) -> Rendered:
    """The prompt of a conversation as text; the files of its images are added to ``images``.

    ``body`` is a request with the fields ``messages``, ``tools``, ``add_generation_prompt``,
    ``continue_final_message`` and ``chat_template_kwargs``.
    """
    if texts := [call.function.arguments for message in body.messages for call in message.tool_calls or ()]:
        check_texts(texts, "the arguments of tool_calls", service.max_seq_len)
    template = service.tokenizer.chat_template or ""
    messages = plain_messages(body.messages, template, images if service.engine.llm.sees else None)
    told = [tool.model_dump(exclude_none=True) for tool in body.tools or ()] if tools else []
    if told and not takes_tools(template):
        messages = tell_tools(messages, told, template)
    if "tool_calls" not in template and any(message.get("tool_calls") for message in messages):
        write_calls(messages, service.answer_format.tools)
    opened = body.add_generation_prompt is not False
    if body.continue_final_message:
        if body.add_generation_prompt:
            raise invalid("add_generation_prompt contradicts continue_final_message: give one", "add_generation_prompt")
        last = messages[-1].get("content")
        if messages[-1]["role"] != "assistant" or not last or not isinstance(last, str):
            raise invalid("continue_final_message needs an assistant message at the end", "messages")
        opened = False
    rendered = _rendered(service, messages, add_generation_prompt=opened, variables=_variables(template, body, told))
    return _open_ended(rendered, messages[-1]["content"].strip()) if body.continue_final_message else rendered


def _rendered(service: Service, messages: list[dict[str, Any]], **options: Any) -> Rendered:
    """The conversation as the template writes it; where it refuses system messages after the first, without these."""
    render, options = service.tokenizer.template.render, options | {"limit": service.max_characters}
    try:
        return render(messages, **options, read_arguments=True)
    except InvalidRequestError:
        moved = move_system_messages(messages)
        if moved is None:
            raise
        return render(moved, **options, read_arguments=True)


def _open_ended(rendered: Rendered, last: str) -> Rendered:
    """The rendered conversation up to the end of its last message, which the model goes on to write."""
    end = rendered.text.rfind(last)
    if end < 0:
        raise invalid("the chat template rewrites the last message, so that it cannot be continued", "messages")
    return rendered.until(end + len(last))


def _variables(template: str, body: Any, told: Sequence[dict[str, Any]]) -> dict[str, Any]:
    given = dict(body.chat_template_kwargs or {})
    for name in given:
        if name in RESERVED or name.endswith("_token"):
            raise invalid(f"chat_template_kwargs cannot set {name[:40]}", f"chat_template_kwargs.{name[:40]}")
    effort = getattr(body, "reasoning_effort", None)
    if effort is not None:
        given = effort_variables(template, effort) | given
    return given | ({"tools": told} if told else {})


def shows_image(message: Message) -> bool:
    """Whether a message has a part that is an image."""
    return isinstance(message.content, list) and any(part.type == "image_url" for part in message.content)


def plain_messages(messages: Sequence[Message], template: str, images: list[bytes] | None) -> list[dict[str, Any]]:
    """Messages as templates expect them: ``developer`` as ``system``, content as one text.

    A message with images has a list of parts as its content, and their files are added to ``images``; None: no
    images are taken.
    """
    plain = []
    for place, message in enumerate(messages):
        own = message.model_dump(exclude_none=True, include={"name", "tool_call_id", "reasoning_content"})
        role = "system" if message.role == "developer" and "developer" not in template else message.role
        own |= {"role": role, "content": _content(message, f"messages[{place}].content", images)}
        if "reasoning_content" in own and is_harmony(template):
            _rename_thinking(own, calls=bool(message.tool_calls))
        if message.tool_call_id is not None:
            own["tool_call_id"] = own_id(template, message.tool_call_id)
        if message.tool_calls:
            calls = [{"name": call.function.name, "arguments": call.function.arguments} for call in message.tool_calls]
            ids = [own_id(template, call.id) for call in message.tool_calls]
            own["tool_calls"] = [{"id": i, "type": "function", "function": f} for i, f in zip(ids, calls, strict=True)]
        elif message.content is None and message.role != "assistant":
            raise invalid(f"messages[{place}] has no content: give text", f"messages[{place}].content")
        plain.append(own)
    return plain


def _rename_thinking(message: dict[str, Any], *, calls: bool) -> None:
    """Thinking by the name that gpt-oss's template has for it, which takes no content beside it before calls."""
    if thinking := message.pop("reasoning_content", None):
        content = message["content"]
        joined = calls and bool(content) and isinstance(content, str)
        message |= {"thinking": f"{thinking}\n\n{content}", "content": ""} if joined else {"thinking": thinking}


def _content(message: Message, where: str, images: list[bytes] | None) -> str | list[dict[str, str]]:
    if not isinstance(message.content, list):
        return message.content or ""
    if images is not None and shows_image(message):
        return image_parts(message.content, where, images, _text)
    return "\n".join(_text(part, f"{where}[{i}]") for i, part in enumerate(message.content))


def _text(part: ContentPart, where: str) -> str:
    if part.type not in ("text", "refusal"):
        raise invalid(f"{where} is of type {part.type!r}, and this server reads text only", where, "unsupported")
    text = part.text if part.type == "text" else part.refusal
    if text is None:
        raise invalid(f"{where} is of type {part.type}, but has none", where)
    return text
