"""Random models of a few kilobytes, and a way to feed them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outrider.cache.protocol import KVCache
from outrider.config import DTypeName
from outrider.models.base import LoadedModel, Model
from outrider.models.batch import ForwardBatch, Span
from outrider.models.config import ModelConfig
from outrider.models.factory import make_model
from outrider.verify.arrays import Floats, host
from outrider.verify.tree import ancestor_mask, depths
from outrider.weights.files.layout import expected_shapes
from outrider_torch.models.llama import LlamaModel

DTYPES: dict[str, DTypeName] = {"bf16": "bfloat16", "fp32": "float32", "int8": "q8_0", "q4": "q4_1"}


def config(**changes: Any) -> ModelConfig:
    """Two layers of SmolLM2's proportions, unless told otherwise."""
    dims: dict[str, Any] = {
        "family": "llama",
        "vocab_size": 64,
        "hidden_size": 48,
        "intermediate_size": 128,
        "num_layers": 2,
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 8,
        "max_seq_len": 128,
        "tie_embeddings": True,
    }
    return ModelConfig(**dims | changes)


def tensors(config: ModelConfig, seed: int = 0) -> dict[str, Tensor]:
    """Random weights under their canonical names, scaled so that activations keep their size."""
    generator = torch.Generator().manual_seed(seed)
    out: dict[str, Tensor] = {}
    for name, shape in expected_shapes(config).items():
        w = torch.randn(shape, generator=generator)
        if "norm" in name:
            out[name] = 1 + 0.1 * w
        else:
            out[name] = w if "embed" in name else w / shape[-1] ** 0.5
    return out


def draft_head(config: ModelConfig, seed: int = 0) -> dict[str, Tensor]:
    """Random weights of the head that a model with ``mtp_layers`` brings, as ``tensors``."""
    d, generator = config.hidden_size, torch.Generator().manual_seed(seed)
    layer = tensors(replace(config, num_layers=1, mtp_layers=0, recurrent=None), seed + 1)
    found = {f"mtp.{name.removeprefix('model.')}": w for name, w in layer.items() if name.startswith("model.layers.")}
    found["mtp.fc.weight"] = torch.randn(d, 2 * d, generator=generator) / (2 * d) ** 0.5
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        found[f"mtp.{name}.weight"] = 1 + 0.1 * torch.randn(d, generator=generator)
    return found


def llama(kind: str = "bf16", *, seed: int = 0, **changes: Any) -> LoadedModel:
    """``kind`` is bf16, fp32, int8 or q4; or kv8: in bfloat16, with keys and values in 8 bits."""
    c = config(**changes)
    if kind == "kv8":
        return make_model(c, tensors(c, seed), dtype="bfloat16", kv_cache_dtype="int8")
    return make_model(c, tensors(c, seed), dtype=DTYPES[kind])


def torch_llama(*, seed: int = 0, **changes: Any) -> LlamaModel:
    """On torch, in float32, as on a GPU."""
    c = config(**changes)
    return LlamaModel(c, tensors(c, seed), dtype=torch.float32)


def ids(n: int, vocab_size: int = 64, seed: int = 1) -> list[int]:
    return torch.randint(0, vocab_size, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


def feed(
    model: Model, cache: KVCache, *work: tuple[int, Sequence[int]], parents: Sequence[int] | None = None
) -> list[Floats]:
    """Append tokens to each slot, all in one run: the logits [tokens, vocab] of each.

    With ``parents`` the last tokens of every slot are a tree below those before.
    """
    spans: list[Span] = []
    packed: list[int] = []
    positions: list[int] = []
    for slot, tokens in work:
        start = cache.length(slot)
        cache.extend(slot, len(tokens))
        spans.append(Span(slot, start, len(tokens), None if parents is None else ancestor_mask(parents)))
        packed += tokens
        causal = len(tokens) - len(parents or ())
        positions += range(start, start + causal)
        positions += (start + causal + d for d in depths(parents or ()))
    batch = ForwardBatch(packed, positions, tuple(spans), None)
    ends = np.cumsum([len(tokens) for _, tokens in work])
    return np.split(host(model.forward(batch, cache).logits), ends[:-1])


def identical(a: Floats | Tensor, b: Floats | Tensor) -> bool:
    """Of one dtype, equal bit for bit and never NaN, so that -0.0 and 0.0 differ; arrays or tensors."""
    if str(a.dtype).removeprefix("torch.") != str(b.dtype).removeprefix("torch."):
        return False
    x, y = np.ascontiguousarray(host(a)), np.ascontiguousarray(host(b))  # bfloat16 is float32 without loss
    return not bool(np.isnan(x).any()) and np.array_equal(x.view(np.int32), y.view(np.int32))
