"""Converts prompts and options into requests of an engine."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
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
            split = extension("input_sources", "images", "the reader of images in prompts").split_prompt
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
