"""Input sources: the inputs of a request besides the embeddings of its token ids.

A text has token ids only. Extensions add images, whose rows replace those of placeholder tokens, inputs of encoders, to
which a sequence attends from its slot in the cache, and adapters, which change the model's linear layers.
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
    """The input of one request, or of several with the same input. This class is a text's, without further input."""

    @property
    def digest(self) -> str:
        """The key of the input: equal token ids and digests give equal cache rows. Contains no NUL."""
        return ""

    @property
    def positions(self) -> int:
        """The number of positions that are encoded before the prompt's first token."""
        return 0

    @property
    def adapter(self) -> int | None:
        """The index of the low-rank matrices added to the model's linear layers (``models.adapters``); None: none."""
        return None

    def check(self, model: Model) -> None:
        """Raise ``InvalidRequestError`` unless the model takes this input."""
        if has_encoder(model):
            raise InvalidRequestError(f"{model.config.family} needs {model.config.needed_input}", param="prompt")

    def prepare(self) -> None:
        """Do slow computations before the request is queued."""

    def attach(self, model: Model, cache: KVCache, slot: int) -> None:
        """A sequence of ``model`` begins in a slot of its cache: store there the encoded input."""

    def is_computed(self, model: Model) -> bool:
        """Whether ``attach`` needs no computation, because it was called for this model or another with its encoder."""
        return True

    def keys(self, prompt: Sequence[int]) -> Sequence[int]:
        """The prompt as keys of the prefix cache: equal keys and digests mean equal rows."""
        return prompt

    def rows(self, start: int, stop: int) -> tuple[Sequence[int], Floats] | None:
        """The rows that replace embeddings of the prompt's tokens ``start`` to ``stop - 1``.

        Returns the n replaced rows, counted from ``start``, and their inputs, float32 [n, d]; None if n is 0.
        """
        return None


TEXT = InputSource()
TEXT_ONLY = "this model reads text only"
"""The reason why a model reads no images."""


@dataclass
class EncodedPrompt:
    """A prompt as token ids, including placeholders, and its input source."""

    token_ids: list[int]
    input: InputSource = TEXT


class EncodingModel(LoadedModel, Protocol):
    """A model with an encoder, which runs once per input; ``forward`` runs its decoder."""

    def check_input(self, given: Any) -> None:
        """Raise ``InvalidRequestError`` for an input that the encoder does not take."""
        ...

    def encode(self, given: Any) -> Any:
        """The encoded input to which sequences attend, for ``KVCache.attachments``; computed on first use."""
        ...

    def split_prompt(self, token_ids: Sequence[int]) -> EncodedPrompt:
        """Split a prompt into the encoder's input and the decoder's first token ids."""
        ...

    def time_encoder(self) -> tuple[float, int]:
        """The seconds to encode an input, and its positions; 0 seconds if the target shares its encoder."""
        ...

    def match_target(self, target: Model) -> None:
        """As a draft model, share the target's encoder if the two are equal.

        Raises ``IncompatibleDraftError`` if the encoder cannot take the target's input.
        """
        ...


def has_encoder(model: Any) -> TypeGuard[EncodingModel]:
    """Whether a model has an encoder, whose input each request needs."""
    return bool(model.config.needed_input)
