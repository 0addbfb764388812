"""Encoder–decoder models: T5, BART, Marian and Whisper. The encoder runs once per input."""

from outrider_multimodal.encoder_decoder.config import EncoderDecoderConfig
from outrider_multimodal.encoder_decoder.inputs import EncoderInput
from outrider_multimodal.encoder_decoder.kind import is_encoder_decoder

__all__ = ["EncoderDecoderConfig", "EncoderInput", "is_encoder_decoder"]
