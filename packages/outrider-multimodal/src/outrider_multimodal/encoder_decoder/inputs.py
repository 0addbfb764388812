"""What an encoder reads, and what it made of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TypeVar, cast
from weakref import WeakKeyDictionary

import numpy as np

from outrider.cache.protocol import KVCache
from outrider.errors import InvalidRequestError
from outrider.models.base import Model
from outrider.models.inputs import InputSource, has_encoder
from outrider.verify.arrays import Array

__all__ = ["EncoderInput"]

T = TypeVar("T")


class EncoderInput(InputSource):
    """Token ids or the spectrogram of a sound, for all requests that read it.

    What encoders and decoders make of it is kept here and nowhere else: it is computed once, for several outputs of
    one input, for a request that was preempted and for draft models with the same encoder, and goes with the input.
    """

    def __init__(self, values: Array) -> None:
        """``values``: int64 [n] token ids, or float32 [mel bins, frames]."""
        self.values = values
        self._computed: WeakKeyDictionary[object, object] = WeakKeyDictionary()

    @classmethod
    def of_tokens(cls, token_ids: Sequence[int]) -> EncoderInput:
        """A text."""
        return cls(np.array(list(token_ids), np.int64))

    def computed(self, owner: object, compute: Callable[[], T]) -> T:
        """What ``compute`` gives for ``owner``, an encoder or a model; called once."""
        if owner not in self._computed:
            self._computed[owner] = compute()
        return cast("T", self._computed[owner])

    def is_computed(self, model: object) -> bool:
        return model in self._computed

    def check(self, model: Model) -> None:
        if not has_encoder(model):
            raise InvalidRequestError(f"{model.config.family} has no encoder: give it a prompt", param="prompt")
        model.check_input(self)

    def attach(self, model: Model, cache: KVCache, slot: int) -> None:
        """Encode this input, unless that was done before. Draft models without an encoder know only the text so far."""
        if has_encoder(model):
            cache.attachments[slot] = model.encode(self)

    @property
    def is_text(self) -> bool:
        return len(self.values.shape) == 1

    @property
    def positions(self) -> int:
        """Of what the encoder makes of it: a token is one, and of a spectrogram two frames are."""
        return len(self.values) if self.is_text else self.values.shape[1] // 2

    @cached_property
    def digest(self) -> str:
        """Of its numbers: what was cached of an output is for inputs with the same digest alone."""
        data = np.ascontiguousarray(self.values)
        return hashlib.sha256(f"{data.dtype}{data.shape}".encode() + data.tobytes()).hexdigest()
