"""A model that attends to latents, evaluated by NumPy in float64: keys and values of every head are made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.models.config import ModelConfig
from outrider.models.frequencies import inverse_frequencies
from outrider.models.latent import LatentAttention

__all__ = ["SHAPES", "logits", "tiny_config"]

Doubles = NDArray[np.float64]

SHAPES = {
    "rank": LatentAttention(rank=48, query_rank=40, plain=24, rotated=16, value_dim=16, eps=1e-6),
    "direct": LatentAttention(rank=32, query_rank=0, plain=12, rotated=8, value_dim=32, eps=1e-5),
}
"""With a query's latent and without; the first one's rows of the cache are whole vectors of bfloat16."""


def tiny_config(shape: str, **changes: Any) -> ModelConfig:
    """Three dense layers."""
    sizes, heads = SHAPES[shape], 8 if shape == "rank" else 6
    fields: dict[str, Any] = {
        "family": "deepseek_v3", "vocab_size": 70, "hidden_size": 48, "intermediate_size": 80, "num_layers": 3,
        "num_heads": heads, "num_kv_heads": 1, "head_dim": sizes.row, "max_seq_len": 640, "rms_norm_eps": 1e-5,
        "latent": sizes, "attention_scale": 1.3 * sizes.query_dim**-0.5,
    }  # fmt: skip
    return ModelConfig(**fields | changes)


def logits(c: ModelConfig, weights: Mapping[str, Any], tokens: Sequence[int]) -> Doubles:
    """Logits [tokens, vocab] of a text."""
    w = {name: np.asarray(tensor, np.float64) for name, tensor in weights.items()}
    x = w["model.embed_tokens.weight"][list(tokens)]
    for i in range(c.num_layers):
        name = f"model.layers.{i}."
        normed = _norm(x, w[name + "input_layernorm.weight"], c.rms_norm_eps)
        x = x + _attend(c, w, name + "self_attn.", normed)
        normed = _norm(x, w[name + "post_attention_layernorm.weight"], c.rms_norm_eps)
        gate, up = (normed @ w[f"{name}mlp.{part}_proj.weight"].T for part in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[f"{name}mlp.down_proj.weight"].T
    return _norm(x, w["model.norm.weight"], c.rms_norm_eps) @ w["lm_head.weight"].T


def _norm(x: Doubles, weight: Doubles, eps: float) -> Doubles:
    made: Doubles = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight
    return made


def _rotate(c: ModelConfig, x: Doubles) -> Doubles:
    """Rows [rows, ..., rotated], at positions 0, 1, ...; the parts of a pair are half of them apart."""
    angles = np.arange(len(x))[:, None] * inverse_frequencies(c.rope_dim, c.rope_theta, c.rope_scaling)
    angles = angles.reshape(len(x), *[1] * (x.ndim - 2), -1)
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], axis=-1)


def _attend(c: ModelConfig, w: Mapping[str, Doubles], name: str, x: Doubles) -> Doubles:
    t, rows, heads = c.latent, len(x), c.num_heads
    assert t is not None
    if t.query_rank:
        latent = _norm(x @ w[name + "q_a_proj.weight"].T, w[name + "q_a_layernorm.weight"], t.eps)
        q = latent @ w[name + "q_b_proj.weight"].T
    else:
        q = x @ w[name + "q_proj.weight"].T
    q = q.reshape(rows, heads, t.query_dim)
    q = np.concatenate([q[..., : t.plain], _rotate(c, q[..., t.plain :])], axis=-1)
    both = x @ w[name + "kv_a_proj_with_mqa.weight"].T
    latent = _norm(both[:, : t.rank], w[name + "kv_a_layernorm.weight"], t.eps)
    shared = np.repeat(_rotate(c, both[:, t.rank :])[:, None], heads, axis=1)
    k_b = w[name + "k_b_proj.weight"].reshape(heads, t.rank, t.plain)
    v_b = w[name + "v_b_proj.weight"].reshape(heads, t.value_dim, t.rank)
    keys = np.concatenate([np.einsum("sr,hrp->shp", latent, k_b), shared], axis=-1)
    values = np.einsum("sr,hvr->shv", latent, v_b)
    scores = np.einsum("qhd,khd->hqk", q, keys) * (c.attention_scale or 1.0)
    scores[:, np.triu(np.ones((rows, rows), bool), 1)] = -np.inf
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    out: Doubles = np.einsum("hqk,khv->qhv", shares, values).reshape(rows, -1) @ w[name + "o_proj.weight"].T
    return out
