"""Engines with trained heads of every kind, random or right by construction."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from outrider.cache import CacheSpec, KVCache
from outrider.drafters.api import Drafter
from outrider.drafters.context import DrafterContext
from outrider.drafters.heads.config import HeadConfig
from outrider.drafters.heads.fingerprint import TargetFingerprint
from outrider.drafters.registry import DrafterRegistry
from outrider.drafters.trained.heads import source_of_head
from outrider.engine.engine import Engine
from outrider.models.base import HeadTarget
from outrider.models.toy import TableModel
from outrider_torch.heads import make_head
from tests.heads import heads as trained
from tests.small_engines import engine

KINDS = ("medusa", "blockwise", "pass", "eagle", "eagle3", "dflash")


def drafter(head: nn.Module, target: HeadTarget, cache: KVCache, **spec: Any) -> Drafter:
    options = {"slots": 4, "max_seq_len": target.config.max_seq_len} | spec
    source = source_of_head(head)
    context = DrafterContext(
        vocab_size=target.config.vocab_size,
        cache=CacheSpec(**options),
        heads={source: head},
        target=target,
        target_cache=cache,
    )
    return DrafterRegistry(context)[source]


def served(target: HeadTarget, *heads: nn.Module, **options: Any) -> Engine:
    """An engine whose sources are ``heads``, each under the name of its own."""
    others: dict[str, Drafter] = options.pop("more", {})
    budget: int = options.pop("max_batched_tokens", 512)
    options = {"slots": 4} | options

    def more(cache: KVCache) -> dict[str, Drafter]:
        return others | {source_of_head(head): drafter(head, target, cache, **options) for head in heads}

    return engine(target, more=more, max_batched_tokens=budget, **options)


def random_head(kind: str, seed: int = 0, **changes: Any) -> nn.Module:
    """For ``tests.small_models`` models."""
    return trained.random(kind, seed, **changes)[0]


def cycle(vocab: int = 6, order: int = 1) -> TableModel:
    """Counts on: t, t + 1, ... modulo ``vocab``."""
    table = np.zeros([vocab] * (order + 1), np.float32)
    for token in range(vocab):
        table[..., token, (token + 1) % vocab] = 9.0
    return TableModel(table)


def perfect(kind: str, heads: int = 3) -> nn.Module:
    """A head that counts on as ``cycle`` does, from the feature alone: any slip of a place is a wrong token."""
    own: dict[str, Any] = {"heads": heads}
    if kind.startswith("eagle"):
        own = {"num_heads": 1, "num_kv_heads": 1, "head_dim": 2, "intermediate_size": 1, "max_seq_len": 64}
    if kind == "eagle3":
        own |= {"feature_layers": (1,)}
    config = HeadConfig(kind=kind, target=TargetFingerprint("table", 1, 1, 6, ""), hidden_size=1, vocab_size=6, **own)
    head = make_head(config)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
        state = head.state_dict()
        for name, value in right_weights(kind, heads).items():
            state[name].copy_(value)
    return head.eval().requires_grad_(False)


def right_weights(kind: str, heads: int) -> dict[str, Tensor]:
    """Head i adds i + 1 to the token it reads; EAGLE adds one; the others are zero."""
    if kind == "medusa":
        wanted = {1: 1.2784645427610738, 2: 2.2176297, 3: 3.1437202}  # their SiLU is 1, 2 and 3
        return {f"blocks.{i}.bias": torch.tensor([wanted[i + 1]]) for i in range(heads)}
    if kind == "blockwise":
        return {"inner.bias": torch.ones(heads), "outer": torch.arange(1.0, heads + 1).view(heads, 1, 1)}
    assert kind == "eagle"
    return {"fc.weight": torch.tensor([[0.0, 1.0]]), "fc.bias": torch.tensor([1.0])}


def ahead_of_a_cycle() -> tuple[TableModel, nn.Module]:
    """Token 6 says "look ahead": after t comes t + 1, after t 6 comes t + 2, and after t 6 6 comes t + 3, modulo 6."""
    table = np.zeros((7, 7, 7, 7), np.float32)
    for a, b, c in itertools.product(range(7), repeat=3):
        following = c + 1 if c < 6 else b + 2 if b < 6 else a + 3
        table[a, b, c, following % 6] = 9.0
    fingerprint = TargetFingerprint("table", 3, 1, 7, "")
    config = HeadConfig(kind="pass", target=fingerprint, hidden_size=3, vocab_size=7, heads=2)
    head = make_head(config).requires_grad_(False)
    head.load_state_dict({"embeddings": torch.full((2, 3), 6.0)})
    return TableModel(table), head
