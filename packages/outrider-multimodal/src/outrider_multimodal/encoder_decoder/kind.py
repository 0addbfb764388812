"""Interface of models with an encoder, independent of the backend."""

from __future__ import annotations

from typing import Any, Protocol, TypeGuard

from outrider.models.inputs import EncodingModel
from outrider_multimodal.encoder_decoder.config import EncoderDecoderConfig

__all__ = ["CALIBRATION_SOURCE", "DecoderOfEncoder", "is_encoder_decoder"]

CALIBRATION_SOURCE = 256  # tokens of text that a sequence without an input is assumed to have


class DecoderOfEncoder(EncodingModel, Protocol):
    """A model whose ``forward`` is the decoder's; its encoder runs once per input."""

    @property
    def config(self) -> EncoderDecoderConfig: ...

    @property
    def shares_encoder(self) -> bool:
        """Whether another model shares and runs the encoder."""
        ...

    def share_encoder(self, other: Any) -> object:
        """Use another model's encoder if it is equal."""
        ...


def is_encoder_decoder(model: object) -> TypeGuard[DecoderOfEncoder]:
    """Whether a model has an encoder."""
    return isinstance(getattr(model, "config", None), EncoderDecoderConfig)
