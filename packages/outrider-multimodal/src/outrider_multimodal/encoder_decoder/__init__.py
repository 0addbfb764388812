"""Encoder–decoder models: T5, BART, Marian and Whisper. The encoder runs once for an input."""

from outrider_multimodal.encoder_decoder.attaching import attach_input, check_input, match_encoders
from outrider_multimodal.encoder_decoder.config import EncoderDecoderConfig
from outrider_multimodal.encoder_decoder.inputs import EncoderInput
from outrider_multimodal.encoder_decoder.kind import EncodingModel, has_encoder
from outrider_multimodal.encoder_decoder.timing import time_encoder

__all__ = [
    "EncoderDecoderConfig",
    "EncoderInput",
    "EncodingModel",
    "attach_input",
    "check_input",
    "has_encoder",
    "match_encoders",
    "time_encoder",
]
