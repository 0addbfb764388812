"""The seam of inputs: what a model reads of a request besides the embeddings of its token ids.

A text is its token ids and no more. Extensions bring images, which stand at the places of placeholder tokens, and the
inputs of encoders, which a sequence attends to from its slot in the cache. An adapter changes what a model computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

from outrider.cache.protocol import KVCache
from outrider.errors import InvalidRequestError
from outrider.models.base import LoadedModel, Model
from outrider.verify.arrays import Floats


class InputSource:
    """Of one request, or of several that read the same; this one is a text's."""

    @property
    def digest(self) -> str:
        """Equal token ids with equal digests come to equal rows of the cache. It holds no NUL."""
        return ""

    @property
    def positions(self) -> int:
        """Positions that are read before the first token of the prompt."""
        return 0

    @property
    def adapter(self) -> int | None:
        """Where the low-rank matrices are that are added to the model's linear layers (``models.adapters``)."""
        return None

    def check(self, model: Model) -> None:
        """Raise ``InvalidRequestError`` unless the model takes this input."""
        if has_encoder(model):
            raise InvalidRequestError(f"{model.config.family} needs {model.config.needed_input}", param="prompt")

    def prepare(self) -> None:
        """Compute what takes long, before the request is queued."""

    def attach(self, model: Model, cache: KVCache, slot: int) -> None:
        """A sequence of ``model`` begins in a slot of its cache: leave there what it attends to."""

    def is_computed(self, model: Model) -> bool:
        """Whether ``attach`` has nothing to compute, as it has been called for this model or one with its encoder."""
        return True

    def keys(self, prompt: Sequence[int]) -> Sequence[int]:
        """The prompt as the cache compares it: equal keys, and digests, mean equal rows."""
        return prompt

    def rows(self, start: int, stop: int) -> tuple[Sequence[int], Floats] | None:
        """What the model reads in place of embeddings of the prompt's tokens ``start`` to ``stop``.

        Which of them, counted from ``start``, and float32 [n, d]; None: none of them.
        """
        return None


TEXT = InputSource()
TEXT_ONLY = "this model reads text only"
"""Why a model reads no images."""


@dataclass
class EncodedPrompt:
    """A prompt as token ids, with those of placeholders, and what the model reads besides them."""

    token_ids: list[int]
    input: InputSource = TEXT


class EncodingModel(LoadedModel, Protocol):
    """A model whose ``forward`` is a decoder's; its encoder runs once for an input."""

    def check_input(self, given: Any) -> None:
        """Raise ``InvalidRequestError`` for an input that the encoder does not take."""
        ...

    def encode(self, given: Any) -> Any:
        """What sequences attend to, for ``KVCache.attachments``; computed when first asked for."""
        ...

    def split_prompt(self, token_ids: Sequence[int]) -> EncodedPrompt:
        """A prompt as the encoder's input and the token ids that the decoder begins with."""
        ...

    def time_encoder(self) -> tuple[float, int]:
        """Seconds to encode an input, and its positions; 0 seconds where the encoder is shared with the target's."""
        ...

    def match_target(self, target: Model) -> None:
        """As a draft model, use the target's encoder where it is the same.

        Raises ``IncompatibleDraftError`` where the encoder cannot take the target's input.
        """
        ...


def has_encoder(model: Any) -> TypeGuard[EncodingModel]:
    """Whether a model has an encoder, which its requests need an input for."""
    return bool(model.config.needed_input)
