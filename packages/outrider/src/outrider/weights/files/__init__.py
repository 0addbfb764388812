"""Weights: a model's configuration and its tensors under their canonical names, whatever the files were."""

from outrider.weights.files.checkpoint import Checkpoint
from outrider.weights.files.folder import (
    GGUF_WEIGHTS,
    PICKLE_SUFFIXES,
    has_weights,
    open_checkpoint,
    refuse_pickles,
)

__all__ = ["GGUF_WEIGHTS", "PICKLE_SUFFIXES", "Checkpoint", "has_weights", "open_checkpoint", "refuse_pickles"]
