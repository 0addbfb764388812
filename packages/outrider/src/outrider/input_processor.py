"""From what a caller asks for to requests an engine can run."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeGuard

from outrider.adapters import Adapters
from outrider.config import SamplingParams, SpeculationParams
from outrider.config.adapters import LoRARequest
from outrider.config.combination import AUTO
from outrider.config.structured import StructuredOutput
from outrider.engine.request import Request
from outrider.errors import InvalidRequestError
from outrider.extensions import extension
from outrider.tokenizer.tokenizer import IncrementalDetokenizer, Tokenizer
from outrider.utils.json_files import shown
from outrider.verify.constraint import Constraint
from outrider.verify.distribution import check_ids
from outrider_multimodal.encoder_decoder import EncoderInput
from outrider_multimodal.images import PromptImages
from outrider_multimodal.vision import ImageLimits, ImagePrompt, ImageSource, ReadPrompt, has_images, split_images
from outrider_multimodal.vision.prompts import images_of

if TYPE_CHECKING:
    from outrider.grammar import GrammarCompiler

Message = Mapping[str, Any]
Prompt = str | Sequence[int] | ImagePrompt | ReadPrompt


class InputProcessor:
    """Turns prompts into token ids, grammars into constraints, and numbers requests."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        eos: tuple[int, ...],
        speculation: SpeculationParams,
        adapters: Adapters,
        decoder_prompt: Sequence[int] = (),
        vision: Any = "this model reads text only",
    ) -> None:
        """Args:
        speculation: for requests that say nothing else; its ``draft`` names sources, not ``auto``.
        decoder_prompt: of a target whose encoder reads the prompt: what its decoder begins with.
        vision: what reads images, or why nothing does.
        """
        self.adapters, self.vision = adapters, vision
        self._tokenizer, self._eos, self._speculation = tokenizer, eos, speculation
        self._decoder_prompt = list(decoder_prompt)
        self._ids = itertools.count()

    @cached_property
    def grammars(self) -> GrammarCompiler:
        """Compiles structured outputs; made when first asked for, as its library takes a while to import."""
        from outrider.grammar import GrammarCompiler

        return GrammarCompiler(self._tokenizer, self._eos)

    def read(
        self,
        prompt: Prompt | Sequence[Message],
        *,
        limits: ImageLimits = ImageLimits(),  # noqa: B008  (frozen)
        cache_salt: str = "",
        tenant: str = "",
        **_: Any,
    ) -> ReadPrompt:
        """A text, token ids, chat messages written with the model's template, or any of these with images.

        ``cache_salt`` and ``tenant`` are those of its requests. Raises ``InvalidRequestError`` for anything else, and
        for images that cannot be read.
        """
        if isinstance(prompt, ReadPrompt):
            check_ids("prompt", prompt.token_ids, self._tokenizer.vocab_size)
            return prompt
        images: list[ImageSource] = []
        if isinstance(prompt, Mapping):
            images = images_of(prompt)
            prompt = prompt.get("prompt", prompt.get("prompt_token_ids", ()))
        elif is_conversation(prompt) and has_images(prompt):
            prompt, images = split_images(prompt)
        if images and isinstance(self.vision, str):
            raise InvalidRequestError(f"{self.vision}: leave the images out", param="image")
        ids = self._token_ids(prompt)
        if not images or isinstance(self.vision, str):
            return ReadPrompt(ids)
        read: ReadPrompt = self.vision.read(ids, images, limits=limits, domain=cache_salt, tenant=tenant)
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
        after: Request | None = None,
        *,
        images: PromptImages | None = None,
        encoder_input: EncoderInput | None = None,
        constraint: Constraint | None = None,
        lora_request: LoRARequest | None = None,
        **scheduling: Any,
    ) -> Request:
        """One request, not yet checked against an engine.

        Args:
            after: another output of the same prompt.
            images: that the prompt shows.
            encoder_input: what the target's encoder takes, where that is not the prompt.
            constraint: what the output keeps to, in place of ``params.structured``.
        """
        if images is not None and lora_request is not None:
            raise InvalidRequestError(
                f"lora_request={lora_request.lora_name!r} with images is not supported: leave one of them out",
                param="lora_request",
            )
        speculation = self._resolve(speculation or self._speculation)
        if self._decoder_prompt and encoder_input is None:
            known = None if after is None else after.encoder_input
            ids, encoder_input = self._decoder_prompt, known or EncoderInput.of_tokens(ids)
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
            encoder_input=encoder_input,
            images=images,
            after=after,
            adapter=None if lora_request is None else self.adapters.find(lora_request),
            **scheduling,
        )
        if params.beam_width:
            extension("decode_methods", "beam_search", f"beam_width={params.beam_width}")(request, after)
        return request

    def _constraint(self, form: StructuredOutput, prompt: Sequence[int], domain: str) -> Constraint:
        """What keeps an output to ``form``, which may begin only behind a thinking section."""
        constraint = self.grammars.constraint(form, domain)
        return constraint if form.thinking is None else self.grammars.behind_thinking(constraint, form.thinking, prompt)

    def _resolve(self, speculation: SpeculationParams) -> SpeculationParams:
        """With ``draft="auto"`` decided, and a prediction as token ids."""
        if speculation.draft == AUTO:
            draft = self._speculation.draft if speculation.prediction is None else "prediction"
            speculation = replace(speculation, draft=draft)
        if isinstance(speculation.prediction, str):
            expected = self._tokenizer.encode(speculation.prediction, add_special_tokens=False)
            speculation = replace(speculation, prediction=expected)
        elif speculation.prediction is not None:
            check_ids("prediction", tuple(speculation.prediction), self._tokenizer.vocab_size)
        return speculation


def either(params: Any, sampling_params: Any) -> Any:
    """``params``, under either of its names."""
    if params is not None and sampling_params is not None:
        raise InvalidRequestError("params and sampling_params are the same option: give one of them", param="params")
    return sampling_params if params is None else params


def is_conversation(prompt: object) -> TypeGuard[Sequence[Message]]:
    """Whether ``prompt`` is a list of messages, at least one."""
    return isinstance(prompt, Sequence) and bool(prompt) and all(isinstance(message, Mapping) for message in prompt)


def _check_messages(messages: Sequence[Message]) -> None:
    """What no template can write. Raises InvalidRequestError."""
    for place, message in enumerate(messages):
        if not message.get("role"):
            raise InvalidRequestError(
                f"messages[{place}] has no role: give user, assistant or system", param="messages"
            )
        if message.get("content") is None and message["role"] in ("user", "system"):
            raise InvalidRequestError(f"messages[{place}] has no content: give text", param="messages")


def conversations(messages: object) -> list[Sequence[Message]] | None:
    """Those of a list of conversations; None where ``messages`` are one.

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
    """Those of a list of prompts; None where ``prompts`` are one. Raises ``InvalidRequestError`` for anything else."""
    if isinstance(prompts, str | Mapping):
        return None
    if not isinstance(prompts, Iterable) or isinstance(prompts, bytes):
        raise InvalidRequestError(
            f"prompts={shown(prompts)} is no text: give a text, or a list of texts", param="prompts"
        )
    return list(prompts)


def with_options(prompt: Any, several: Sequence[Any] | None, params: Any, speculation: Any) -> list[tuple[Any, ...]]:
    """(prompt, params, speculation) of each of ``several`` prompts, or else of ``prompt`` alone.

    Raises ``InvalidRequestError`` unless options are one for all, or a list with one for each.
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
