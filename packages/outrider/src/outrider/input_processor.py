"""Converts prompts and options into requests of an engine."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypedDict, TypeGuard

from outrider.adapters import Adapters
from outrider.config import SamplingParams, SpeculationParams
from outrider.config.adapters import LoRARequest
from outrider.config.combination import AUTO
from outrider.config.structured import StructuredOutput
from outrider.engine.request import Request
from outrider.errors import InvalidRequestError
from outrider.extensions import extension
from outrider.models.inputs import TEXT, TEXT_ONLY, EncodedPrompt, InputSource
from outrider.tokenizer.tokenizer import IncrementalDetokenizer, Tokenizer
from outrider.utils.json_files import shown
from outrider.verify.constraint import Constraint
from outrider.verify.distribution import check_ids

if TYPE_CHECKING:
    from outrider.verify.grammar import GrammarCompiler

Message = Mapping[str, Any]


class ImagePrompt(TypedDict, total=False):
    """A prompt with images: its text has the model's placeholder (``<image>``) once per image."""

    prompt: str
    prompt_token_ids: Sequence[int]  # instead of ``prompt``
    multi_modal_data: Mapping[str, Any]  # {"image": an image, or a list of them}


Prompt = str | Sequence[int] | ImagePrompt | EncodedPrompt


class InputProcessor:
    """Converts prompts to token ids and structured outputs to constraints, and builds requests with unique ids."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        eos: tuple[int, ...],
        speculation: SpeculationParams,
        adapters: Adapters,
        split_prompt: Callable[[Sequence[int]], EncodedPrompt] | None = None,
        vision: Any = TEXT_ONLY,
    ) -> None:
        """Args:
        speculation: the default for requests; its ``draft`` names sources, not ``auto``.
        split_prompt: splits the encoder's input off a prompt, for a target with an encoder (``EncodingModel``).
        vision: the ``Vision`` that reads images, or a str: the reason why images are not supported.
        """
        self.adapters, self.vision = adapters, vision
        self._tokenizer, self._eos, self._speculation = tokenizer, eos, speculation
        self._split_prompt = split_prompt
        self._ids = itertools.count()

    @cached_property
    def grammars(self) -> GrammarCompiler:
        """Compiles structured outputs; created on first use, because its library imports slowly."""
        from outrider.verify.grammar import GrammarCompiler

        return GrammarCompiler(self._tokenizer, self._eos)

    def encode_prompt(
        self,
        prompt: Prompt | Sequence[Message],
        *,
        limits: Any = None,
        cache_salt: str = "",
        tenant: str = "",
        **_: Any,
    ) -> EncodedPrompt:
        """Encode a text, token ids, chat messages (with the model's template), or any of these with images.

        ``limits``: the limits of images; ``cache_salt`` and ``tenant``: the request's.

        Raises:
            InvalidRequestError: the prompt has another type, or an image cannot be read.
            MissingExtensionError: the prompt has images, and the distribution that reads images is not installed.
        """
        if isinstance(prompt, EncodedPrompt):
            check_ids("prompt", prompt.token_ids, self._tokenizer.vocab_size)
            return prompt
        images: Sequence[Any] = ()
        text: Any = prompt
        if isinstance(prompt, Mapping) and tuple(prompt) in (("prompt",), ("prompt_token_ids",)):
            text = next(iter(prompt.values()))
        elif isinstance(prompt, Mapping) or (is_conversation(prompt) and _shows_images(prompt)):
            split = extension("input_sources", "images", "what reads images in prompts").split_prompt
            text, images = split(prompt)
            if images and isinstance(self.vision, str):
                raise InvalidRequestError(f"{self.vision}: leave the images out", param="image")
        ids = self._token_ids(text)
        if not images:
            return EncodedPrompt(ids)
        read: EncodedPrompt = self.vision.read(ids, images, limits=limits, domain=cache_salt, tenant=tenant)
        return read

    def _token_ids(self, prompt: str | Sequence[int] | Sequence[Message]) -> list[int]:
        if isinstance(prompt, str):
            return self._tokenizer.encode(prompt)
        if is_conversation(prompt):
            _check_messages(prompt)
            return self._tokenizer.encode_chat(prompt)
        if not isinstance(prompt, Sequence) or not all(hasattr(kind, "__index__") for kind in set(map(type, prompt))):
            raise InvalidRequestError(
                f"prompt={shown(prompt)} is no text, list of token ids or list of messages: give one of these; only "
                "LLM.generate and LLM.chat take several, in a list",
                param="prompt",
            )
        ids = [operator.index(token) for token in prompt]  # type: ignore[arg-type]
        check_ids("prompt", ids, self._tokenizer.vocab_size)
        return ids

    def request(
        self,
        ids: list[int],
        params: SamplingParams,
        speculation: SpeculationParams | None,
        prefix_leader: Request | None = None,
        *,
        given: InputSource = TEXT,
        constraint: Constraint | None = None,
        lora_request: LoRARequest | None = None,
        **scheduling: Any,
    ) -> Request:
        """One request, not yet checked against an engine.

        Args:
            prefix_leader: an earlier request of the same prompt, whose cached rows are shared.
            given: the target's input besides the prompt.
            constraint: the output's constraint, used if ``params.structured`` is None.
        """
        if lora_request is not None:
            if given is not TEXT:
                raise InvalidRequestError(
                    f"lora_request={lora_request.lora_name!r} with images is not supported: leave one of them out",
                    param="lora_request",
                )
            given = self.adapters.find(lora_request)
        elif given is TEXT and self._split_prompt is not None:
            split = self._split_prompt(ids)
            ids, given = split.token_ids, split.input if prefix_leader is None else prefix_leader.input
        speculation = self._resolve(speculation or self._speculation)
        form = params.structured
        stop = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else frozenset(self._eos))
        request = Request(
            id=str(next(self._ids)),
            prompt=tuple(ids),
            params=params,
            speculation=speculation,
            stop_ids=stop,
            detokenizer=IncrementalDetokenizer(self._tokenizer, ids, skip_special_tokens=params.skip_special_tokens),
            constraint=constraint if form is None else self._constraint(form, ids, scheduling.get("cache_salt", "")),
            input=given,
            prefix_leader=prefix_leader,
            **scheduling,
        )
        if params.beam_width:
            extension("decode_methods", "beam_search", f"beam_width={params.beam_width}")(request, prefix_leader)
        return request

    def _constraint(self, form: StructuredOutput, prompt: Sequence[int], domain: str) -> Constraint:
        """The constraint of ``form``, which may apply only after a thinking section."""
        constraint = self.grammars.constraint(form, domain)
        return constraint if form.thinking is None else self.grammars.behind_thinking(constraint, form.thinking, prompt)

    def _resolve(self, speculation: SpeculationParams) -> SpeculationParams:
        """``speculation`` with ``draft="auto"`` resolved and the prediction as token ids."""
        if speculation.draft == AUTO:
            draft = self._speculation.draft if speculation.prediction is None else "prediction"
            speculation = replace(speculation, draft=draft)
        if isinstance(speculation.prediction, str):
            expected = self._tokenizer.encode(speculation.prediction, add_special_tokens=False)
            speculation = replace(speculation, prediction=expected)
        elif speculation.prediction is not None:
            check_ids("prediction", tuple(speculation.prediction), self._tokenizer.vocab_size)
        return speculation


def resolve_alias(params: Any, sampling_params: Any) -> Any:
    """The value of ``params`` or of its alias ``sampling_params``. Raises ``InvalidRequestError`` if both are given."""
    if params is not None and sampling_params is not None:
        raise InvalidRequestError("params and sampling_params are the same option: give one of them", param="params")
    return sampling_params if params is None else params


def is_conversation(prompt: object) -> TypeGuard[Sequence[Message]]:
    """Whether ``prompt`` is a non-empty list of messages."""
    return isinstance(prompt, Sequence) and bool(prompt) and all(isinstance(message, Mapping) for message in prompt)


def _shows_images(messages: Sequence[Message]) -> bool:
    parts = [part for message in messages if isinstance(message.get("content"), list) for part in message["content"]]
    return any(isinstance(part, Mapping) and part.get("type") in ("image_url", "image") for part in parts)


def _check_messages(messages: Sequence[Message]) -> None:
    """Raise ``InvalidRequestError`` for a message without a role, or without content that its role needs."""
    for place, message in enumerate(messages):
        if not message.get("role"):
            raise InvalidRequestError(
                f"messages[{place}] has no role: give user, assistant or system", param="messages"
            )
        if message.get("content") is None and message["role"] in ("user", "system"):
            raise InvalidRequestError(f"messages[{place}] has no content: give text", param="messages")


def conversations(messages: object) -> list[Sequence[Message]] | None:
    """The conversations of a list of conversations; None if ``messages`` is a single conversation.

    Raises ``InvalidRequestError`` for anything else.
    """
    if is_conversation(messages):
        return None
    if isinstance(messages, Sequence) and not messages:
        raise InvalidRequestError(
            f"messages={messages!r} is empty: give at least one message, as in "
            '[{"role": "user", "content": "Hello"}]',
            param="messages",
        )
    items = messages if isinstance(messages, Sequence) and not isinstance(messages, str) else ()
    if items and all(map(is_conversation, items)):
        return list(items)
    neither = [i for i, item in enumerate(items) if not isinstance(item, Mapping) and not is_conversation(item)]
    value = f"messages[{neither[0]}]={shown(items[neither[0]])}" if neither else f"messages={shown(messages)}"
    raise InvalidRequestError(
        f"{value} is no conversation: give one list of messages with role and content, or a list of such lists",
        param="messages",
    )


def prompts_in(prompts: Any) -> list[Prompt] | None:
    """The prompts of a list; None if ``prompts`` is a single prompt. Raises ``InvalidRequestError`` for other types."""
    if isinstance(prompts, str | Mapping):
        return None
    if not isinstance(prompts, Iterable) or isinstance(prompts, bytes):
        raise InvalidRequestError(
            f"prompts={shown(prompts)} is no text: give a text, or a list of texts", param="prompts"
        )
    return list(prompts)


def broadcast_params(
    prompt: Any, several: Sequence[Any] | None, params: Any, speculation: Any
) -> list[tuple[Any, ...]]:
    """(prompt, params, speculation) of each of ``several`` prompts, or of ``prompt`` alone if ``several`` is None.

    Each option is one value for all prompts, or a list with one value per prompt; otherwise raises
    ``InvalidRequestError``.
    """
    if several is None:
        return [(prompt, _for_one(params, "params"), _for_one(speculation, "speculation"))]
    options = (_for_each(params, len(several), "params"), _for_each(speculation, len(several), "speculation"))
    return list(zip(several, *options, strict=True))


def _for_one(value: Any, name: str) -> Any:
    if _is_list(value):
        raise InvalidRequestError(f"one prompt came with a list of {name}: give one, or a list of prompts", param=name)
    return value


def _for_each(value: Any, count: int, name: str) -> list[Any]:
    if not _is_list(value):
        return [value] * count
    if len(value) != count:
        raise InvalidRequestError(f"{count} prompts came with {len(value)} {name}: give one, or one each", param=name)
    return list(value)


def _is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str)
