"""Folders of encoder–decoder models: each file says how a family's configuration and tensors are named."""

from outrider_multimodal.weights.open import ENCODER_DECODERS, load, open_encoder_decoder

__all__ = ["ENCODER_DECODERS", "load", "open_encoder_decoder"]
