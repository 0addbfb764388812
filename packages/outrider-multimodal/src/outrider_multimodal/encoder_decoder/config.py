"""Dimensions and constants of an encoder–decoder model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from outrider.models.config import ModelConfig

__all__ = ["EncoderDecoderConfig"]


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderConfig(ModelConfig):
    """What ``ModelConfig`` says is the decoder's. The encoder shares its width, norms, activation and positions."""

    encoder_layers: int
    encoder_heads: int
    encoder_intermediate_size: int
    max_source_len: int
    """Positions that the encoder takes: tokens, or pairs of frames of sound."""
    mel_bins: int | None = None
    """Of the sound that the encoder hears; None: it reads text."""
    activation_function: Literal["gelu", "gelu_tanh", "relu", "silu"] = "gelu"
    positions: Literal["learned", "relative"] = "learned"
    """``learned``: a table that is added to the embedding; ``relative``: a bias on scores, by distance (T5)."""
    position_offset: int = 0
    """Rows of the table before that of position 0 (BART)."""
    relative_buckets: int = 32
    relative_distance: int = 128
    embedding_norm: bool = False
    """A norm right behind the embedding (BART)."""
    final_norm: bool = True
    """A norm behind the last layer (T5, Whisper)."""
    decoder_prompt: tuple[int, ...] = ()
    """What an output begins with that is not part of it; for Whisper ``speech`` knows more."""
    banned_ids: tuple[int, ...] = ()
    """Tokens that never come (padding of Marian)."""

    @property
    def hears(self) -> bool:
        """Whether the encoder takes sound."""
        return self.mel_bins is not None

    @property
    def needed_input(self) -> str:
        return "a sound: use transcribe" if self.hears else "a text for the encoder: use generate"

    @property
    def attached_numbers(self) -> int:
        """Of a window of sound, which has full length; texts are short."""
        return self.cross_numbers if self.hears else 0

    @property
    def cross_numbers(self) -> int:
        """Keys and values of a source of full length, in numbers."""
        return 2 * self.num_layers * self.max_source_len * self.num_heads * self.head_dim
