"""Conversion of published heads, to train them further, or to draft without the hub."""

from __future__ import annotations

from pathlib import Path

import torch

from outrider.drafters.heads.config import HeadConfig
from outrider.drafters.heads.fingerprint import TargetFingerprint, fingerprint_rows
from outrider.weights.folder import open_checkpoint
from outrider_torch.heads import load_head, save_head
from outrider_torch.models.stored import torch_tensors


def import_head(folder: Path, target: Path, out: Path) -> HeadConfig:
    """Convert the published head in ``folder``, for the model in ``target``, into ``out``; return its configuration.

    Errors as for ``load_head``.
    """
    checkpoint = open_checkpoint(target)
    embedding = torch_tensors(checkpoint)["model.embed_tokens.weight"]
    rows = embedding[fingerprint_rows(checkpoint.config.vocab_size)].to(torch.bfloat16)
    fingerprint = TargetFingerprint.of(checkpoint.config, rows, target.name)
    module, config = load_head(folder, torch.bfloat16, (fingerprint, rows))
    save_head(out, module, config)
    return config
