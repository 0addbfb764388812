"""Dimensions and constants of an encoder–decoder model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from outrider.models.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderConfig(ModelConfig):
    """``ModelConfig``'s fields describe the decoder. The encoder shares its width, norms, activation and positions."""

    encoder_layers: int
    encoder_heads: int
    encoder_intermediate_size: int
    max_source_len: int
    """The most positions of the encoder: tokens, or pairs of frames of sound."""
    mel_bins: int | None = None
    """Mel bins of the encoder's sound; None: the encoder reads text."""
    activation_function: Literal["gelu", "gelu_tanh", "relu", "silu"] = "gelu"
    positions: Literal["learned", "relative"] = "learned"
    """``learned``: a table that is added to the embedding; ``relative``: a bias on scores, by distance (T5)."""
    position_offset: int = 0
    """Rows of the table before that of position 0 (BART)."""
    relative_buckets: int = 32
    relative_distance: int = 128
    embedding_norm: bool = False
    """A norm directly after the embedding (BART)."""
    final_norm: bool = True
    """A norm after the last layer (T5, Whisper)."""
    decoder_prompt: tuple[int, ...] = ()
    """Tokens before each output, not part of it; ``speech`` adds Whisper's."""
    banned_ids: tuple[int, ...] = ()
    """Tokens that are never generated (Marian's padding)."""

    @property
    def hears(self) -> bool:
        """Whether the encoder takes sound."""
        return self.mel_bins is not None

    @property
    def needed_input(self) -> str:
        return "a sound: use transcribe" if self.hears else "a text for the encoder: use generate"

    @property
    def attached_numbers(self) -> int:
        """Cached numbers of cross-attention per sequence: of a full window of sound; 0 for text, which is short."""
        return self.cross_numbers if self.hears else 0

    @property
    def cross_numbers(self) -> int:
        """The count of numbers in the keys and values of a full-length source."""
        return 2 * self.num_layers * self.max_source_len * self.num_heads * self.head_dim
