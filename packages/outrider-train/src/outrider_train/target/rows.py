"""A target of which training reads embedding and LM head alone: the code that serves it reads the documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from outrider.errors import ConfigError
from outrider.models.config import ModelConfig
from outrider.weights.folder import open_checkpoint
from outrider_torch.models.stored import torch_tensors
from outrider_train.target.llama import Llama, LlamaOutput, load_llama


class TargetRows(Llama):
    """Embedding and LM head of a model of any family, in place of the whole model."""

    def __init__(self, config: ModelConfig, embedding: Tensor, head: Tensor | None) -> None:
        """``embedding`` and ``head``: float [vocab, d]; None: the head is the embedding."""
        nn.Module.__init__(self)
        self.config = config
        self.register_buffer("rows", embedding, persistent=False)
        self.register_buffer("head_rows", head, persistent=False)

    @property
    def embedding(self) -> Tensor:
        assert isinstance(self.rows, Tensor)
        return self.rows

    @property
    def head(self) -> Tensor:
        return self.head_rows if isinstance(self.head_rows, Tensor) else self.embedding

    def forward(self, *args: Any, **more: Any) -> LlamaOutput:
        """Raises ``ConfigError``: the layers are not there."""
        raise ConfigError(
            f"a {self.config.family} target is run by the code that serves it alone: train an mtp head for it"
        )


def load_rows(folder: Path, dtype: torch.dtype) -> Llama:
    """Embedding and LM head of the model of a folder, in ``dtype``; the whole model if its layers are Llama's.

    Raises ``ModelFormatError`` as ``models.load`` does.
    """
    checkpoint = open_checkpoint(folder)
    if checkpoint.config.is_llama:
        return load_llama(folder, dtype)
    tensors = torch_tensors(checkpoint)
    names = ["model.embed_tokens.weight"] + ([] if checkpoint.config.tie_embeddings else ["lm_head.weight"])
    embedding, *head = (tensors[name].to(dtype, copy=True) for name in names)
    return TargetRows(checkpoint.config, embedding, head[0] if head else None).eval()
