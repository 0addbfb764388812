"""Heads of every kind for the models of ``tests.small_models``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from outrider.drafters.heads.config import HeadConfig
from outrider.drafters.heads.fingerprint import TargetFingerprint, fingerprint_rows
from outrider.drafters.heads.masked import DSpark
from outrider.models.config import ModelConfig
from outrider_torch.heads import make_head
from tests import small_models

LAYER = {"num_heads": 6, "num_kv_heads": 2, "head_dim": 8, "intermediate_size": 64, "max_seq_len": 128}


def target_of(config: ModelConfig, seed: int = 0) -> TargetFingerprint:
    rows = small_models.tensors(config, seed)["model.embed_tokens.weight"][fingerprint_rows(config.vocab_size)]
    return TargetFingerprint.of(config, rows, "tiny")


def config(kind: str, **changes: Any) -> HeadConfig:
    own: dict[str, Any] = {"heads": 3}
    if kind.startswith("eagle"):
        own = dict(LAYER)
    if kind in ("diffusion", "dspark"):
        own |= LAYER | {"num_layers": 2, "feature_layers": (1, 2), "mask_token_id": 63, "layer_windows": (0, 6)}
    if kind == "dspark":
        own |= {"dspark": DSpark(rank=4, confidence=True, confidence_reads_token=True)}
    if kind == "diffusion":
        own |= {"conv_taps": 2, "conv_group": 8, "selector_rank": 4, "selector_top_k": 8}
    if kind == "dflash":
        own |= LAYER | {"num_layers": 2, "selector_rank": 4}
    if kind in ("eagle3", "dflash"):
        own |= {"feature_layers": (1, 2), "draft_vocab_size": 32}
    model = small_models.config()
    sizes = {"hidden_size": model.hidden_size, "vocab_size": model.vocab_size}
    return HeadConfig(kind=kind, target=target_of(model), **(sizes | own | changes))


def random(kind: str, seed: int = 0, **changes: Any) -> tuple[nn.Module, HeadConfig]:
    made = config(kind, **changes)
    head = make_head(made)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter.shape[-1] ** 0.5)
    return head.eval().requires_grad_(False), made


def other_target(made: HeadConfig) -> TargetFingerprint:
    return replace(made.target, digest="0" * 16, name="another")
