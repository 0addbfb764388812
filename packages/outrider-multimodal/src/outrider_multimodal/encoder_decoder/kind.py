"""What the engine asks of a model with an encoder, whatever computes it."""

from __future__ import annotations

from typing import Any, Protocol, TypeGuard

from outrider.models.base import LoadedModel
from outrider_multimodal.encoder_decoder.config import EncoderDecoderConfig
from outrider_multimodal.encoder_decoder.inputs import EncoderInput

__all__ = ["CALIBRATION_SOURCE", "EncodingModel", "has_encoder"]

CALIBRATION_SOURCE = 256  # tokens of text that a sequence without an input is taken to have


class EncodingModel(LoadedModel, Protocol):
    """A model whose ``forward`` is the decoder's; its encoder runs once for an input."""

    @property
    def config(self) -> EncoderDecoderConfig: ...

    @property
    def shares_encoder(self) -> bool:
        """Whether the encoder is another model's too, which runs it anyway."""
        ...

    def check_input(self, given: EncoderInput) -> None:
        """Raises ``InvalidRequestError`` for an input that the encoder does not take."""
        ...

    def encode(self, given: EncoderInput) -> Any:
        """Keys and values for the decoder's cross-attention; computed when first asked for."""
        ...

    def share_encoder(self, other: Any) -> None:
        """Use the encoder of another model where it is the same."""
        ...


def has_encoder(model: object) -> TypeGuard[EncodingModel]:
    """Whether a model is one with an encoder."""
    return isinstance(getattr(model, "config", None), EncoderDecoderConfig)
