"""Inputs of encoders, with the encoders' cached outputs."""

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

T = TypeVar("T")


class EncoderInput(InputSource):
    """Token ids or the spectrogram of a sound, for all requests that read it.

    Results that encoders and decoders compute from it are kept here alone: they are computed once for several
    outputs of one input, preempted requests and draft models with the same encoder, and are freed with the input.
    """

    def __init__(self, values: Array) -> None:
        """``values``: int64 [n] token ids, or float32 [mel bins, frames]."""
        self.values = values
        self._computed: WeakKeyDictionary[object, object] = WeakKeyDictionary()

    @classmethod
    def of_tokens(cls, token_ids: Sequence[int]) -> EncoderInput:
        """The input of a text."""
        return cls(np.array(list(token_ids), np.int64))

    def computed(self, owner: object, compute: Callable[[], T]) -> T:
        """The cached result of ``compute`` for ``owner``, an encoder or a model; called once."""
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
        """Encode this input once, and attach it to ``slot``. Draft models without an encoder read only the output."""
        if has_encoder(model):
            cache.attachments[slot] = model.encode(self)

    @property
    def is_text(self) -> bool:
        return len(self.values.shape) == 1

    @property
    def positions(self) -> int:
        """Positions of the encoder's output: one per token, or one per two frames of a spectrogram."""
        return len(self.values) if self.is_text else self.values.shape[1] // 2

    @cached_property
    def digest(self) -> str:
        """A digest of its values: cached rows of an output are reused only for inputs of equal digest."""
        data = np.ascontiguousarray(self.values)
        return hashlib.sha256(f"{data.dtype}{data.shape}".encode() + data.tobytes()).hexdigest()
