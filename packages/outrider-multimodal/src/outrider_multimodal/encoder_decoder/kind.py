"""Models with an encoder, whatever computes them."""

from __future__ import annotations

from typing import Any, Protocol, TypeGuard

from outrider.models.inputs import EncodingModel
from outrider_multimodal.encoder_decoder.config import EncoderDecoderConfig

__all__ = ["CALIBRATION_SOURCE", "DecoderOfEncoder", "is_encoder_decoder"]

CALIBRATION_SOURCE = 256  # tokens of text that a sequence without an input is taken to have


class DecoderOfEncoder(EncodingModel, Protocol):
    """A model whose ``forward`` is the decoder's; its encoder runs once for an input."""

    @property
    def config(self) -> EncoderDecoderConfig: ...

    @property
    def shares_encoder(self) -> bool:
        """Whether the encoder is another model's too, which runs it anyway."""
        ...

    def share_encoder(self, other: Any) -> object:
        """Use the encoder of another model where it is the same."""
        ...


def is_encoder_decoder(model: object) -> TypeGuard[DecoderOfEncoder]:
    """Whether a model is one with an encoder."""
    return isinstance(getattr(model, "config", None), EncoderDecoderConfig)
