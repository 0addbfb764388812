"""A hybrid model evaluated by NumPy in float64, row by row, from its weights' canonical names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.models.config import Experts, ModelConfig, RecurrentLayers
from outrider.models.frequencies import inverse_frequencies
from tests.hybrid.recurrences import Doubles, Mixer, mamba2, put_recurrent, short_convolution

Weights = Mapping[str, NDArray[np.float32]]


def tiny_config(**changes: Any) -> ModelConfig:
    """Four layers, the last of which attends; two value heads share a key head."""
    recurrent = RecurrentLayers(
        layers=(True, True, True, False), key_heads=2, value_heads=4, key_dim=24, value_dim=20, convolution=4
    )
    sizes: dict[str, Any] = {
        "family": "qwen3_5_text", "vocab_size": 70, "hidden_size": 48, "intermediate_size": 80, "num_layers": 4,
        "num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "rotary_dim": 4, "max_seq_len": 256, "rms_norm_eps": 1e-6,
        "qk_norm": True, "gated_attention": True, "recurrent": recurrent,
    }  # fmt: skip
    return ModelConfig(**sizes | changes)


def random_weights(config: ModelConfig, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Every weight of the model by its canonical name."""
    rng = np.random.default_rng(seed)
    c, d, made = config, config.hidden_size, dict[str, NDArray[np.float32]]()

    def put(name: str, *shape: int, scale: float | None = None, plus: float = 0.0) -> None:
        size = shape[-1] ** -0.5 if scale is None else scale
        made[name] = (rng.standard_normal(shape) * size + plus).astype(np.float32)

    put("model.embed_tokens.weight", c.vocab_size, d, scale=1.0)
    put("lm_head.weight", c.vocab_size, d, scale=0.3)
    put("model.norm.weight", d, scale=0.2, plus=1.0)
    for i in range(c.num_layers):
        _put_layer(put, c, f"model.layers.{i}.", i)
    for name in [n for n in made if n.endswith("linear_attn.decay")]:
        made[name] = -np.exp(made[name])
    return made


def draft_head(config: ModelConfig, seed: int) -> dict[str, NDArray[np.float32]]:
    """The weights of a draft head for the model, by their names in files."""
    rng, d = np.random.default_rng(seed + 2), config.hidden_size
    layer = random_weights(replace(config, num_layers=1, recurrent=None, mtp_layers=0), seed)
    found = {f"mtp.{name.removeprefix('model.')}": w for name, w in layer.items() if ".layers." in name}
    found["mtp.fc.weight"] = (rng.standard_normal((d, 2 * d)) * (2 * d) ** -0.5).astype(np.float32)
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        found[f"mtp.{name}.weight"] = (1 + 0.1 * rng.standard_normal(d)).astype(np.float32)
    return found


def _put_layer(put: Any, c: ModelConfig, name: str, i: int) -> None:
    d = c.hidden_size
    for norm in ("input_layernorm", "post_attention_layernorm"):
        put(f"{name}{norm}.weight", d, scale=0.2, plus=1.0)
    r = c.recurrent
    if r is not None and c.is_recurrent(i):
        put_recurrent(put, r, name + "linear_attn.", d)
    else:
        own, kv = name + "self_attn.", c.num_kv_heads * c.head_dim
        put(own + "q_proj.weight", c.num_heads * c.head_dim * (2 if c.gated_attention else 1), d)
        put(own + "k_proj.weight", kv, d)
        put(own + "v_proj.weight", kv, d)
        put(own + "o_proj.weight", d, c.num_heads * c.head_dim)
        for norm in ("q_norm", "k_norm"):
            put(f"{own}{norm}.weight", c.head_dim, scale=0.2, plus=1.0)
    experts = c.experts if c.is_sparse(i) else None
    mlps = {"mlp.": c.intermediate_size} if experts is None else _experts(put, name, d, experts)
    for mlp, size in mlps.items():
        put(f"{name}{mlp}gate_proj.weight", size, d)
        put(f"{name}{mlp}up_proj.weight", size, d)
        put(f"{name}{mlp}down_proj.weight", d, size)


def _experts(put: Any, name: str, d: int, experts: Experts) -> dict[str, int]:
    put(f"{name}mlp.gate.weight", experts.count, d, scale=0.5)
    mlps = {f"mlp.experts.{e}.": experts.size for e in range(experts.count)}
    if experts.shared_size:
        put(f"{name}mlp.shared_expert_gate.weight", 1, d)
        mlps["mlp.shared_expert."] = experts.shared_size
    return mlps


# ---- The model ------------------------------------------------------------------------------------------------------


def reference_logits(config: ModelConfig, weights: Weights, tokens: Sequence[int]) -> Doubles:
    """Logits of every token of one sequence: float64 [n, vocab]."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    x = w["model.embed_tokens.weight"][list(tokens)]
    for i in range(config.num_layers):
        name = f"model.layers.{i}."
        normed = _norm(x, w[name + "input_layernorm.weight"], config.rms_norm_eps)
        mixer = _mixers(config)[config.is_recurrent(i)]
        x = x + mixer(config, w, name, normed)
        normed = _norm(x, w[name + "post_attention_layernorm.weight"], config.rms_norm_eps)
        x = x + (_sparse(config, w, name, normed) if config.is_sparse(i) else _mlp(w, name + "mlp.", normed))
    logits: Doubles = _norm(x, w["model.norm.weight"], config.rms_norm_eps) @ w["lm_head.weight"].T
    return logits


def _mixers(config: ModelConfig) -> tuple[Mixer, Mixer]:
    """What computes a layer that attends, and one that is recurrent."""
    kinds: dict[str, Mixer] = {"delta": _recurrent, "short": short_convolution, "mamba2": mamba2}
    return _attention, kinds[config.recurrent.kind if config.recurrent is not None else "delta"]


def _norm(x: Doubles, weight: Doubles, eps: float) -> Doubles:
    normed: Doubles = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight
    return normed


def _sigmoid(x: Doubles) -> Doubles:
    return 1 / (1 + np.exp(-x))


def _silu(x: Doubles) -> Doubles:
    return x * _sigmoid(x)


def _mlp(w: Mapping[str, Doubles], name: str, x: Doubles) -> Doubles:
    up = _silu(x @ w[name + "gate_proj.weight"].T) * (x @ w[name + "up_proj.weight"].T)
    return up @ w[name + "down_proj.weight"].T


def _sparse(c: ModelConfig, w: Mapping[str, Doubles], name: str, x: Doubles) -> Doubles:
    assert c.experts is not None
    scores = x @ w[name + "mlp.gate.weight"].T
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    out = np.zeros_like(x)
    for r, row in enumerate(p):
        best = np.argsort(-row, kind="stable")[: c.experts.used]
        total = row[best].sum() if c.experts.normalised else 1.0
        out[r] = sum(row[e] / total * _mlp(w, f"{name}mlp.experts.{e}.", x[r]) for e in best)
    if c.experts.shared_size:
        gate = _sigmoid(x @ w[name + "mlp.shared_expert_gate.weight"].T)
        out += gate * _mlp(w, name + "mlp.shared_expert.", x)
    return out


def _attention(c: ModelConfig, w: Mapping[str, Doubles], name: str, x: Doubles) -> Doubles:
    own, n, d = name + "self_attn.", len(x), c.head_dim
    both = (x @ w[own + "q_proj.weight"].T).reshape(n, c.num_heads, -1)
    q, gate = both[..., :d], both[..., d:]
    k, v = ((x @ w[f"{own}{part}_proj.weight"].T).reshape(n, c.num_kv_heads, d) for part in "kv")
    angles = np.arange(n)[:, None, None] * inverse_frequencies(d, c.rope_theta, c.rope_scaling, c.rotary_dim)
    q, k = (_rotated(_norm(h, w[f"{own}{p}_norm.weight"], c.rms_norm_eps), angles) for h, p in ((q, "q"), (k, "k")))
    k, v = (np.repeat(h, c.num_heads // c.num_kv_heads, axis=1) for h in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(d) + np.triu(np.full((n, n), -np.inf), 1)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    out = np.einsum("hij,jhd->ihd", p / p.sum(-1, keepdims=True), v)
    if c.gated_attention:
        out = out * _sigmoid(gate)
    result: Doubles = out.reshape(n, -1) @ w[own + "o_proj.weight"].T
    return result


def _rotated(x: Doubles, angles: Doubles) -> Doubles:
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles)], -1)


def _recurrent(c: ModelConfig, w: Mapping[str, Doubles], name: str, x: Doubles) -> Doubles:
    r, own, n = c.recurrent, name + "linear_attn.", len(x)
    assert r is not None
    raw = np.concatenate([np.zeros((r.convolution - 1, r.channels)), x @ w[own + "in_proj_qkv.weight"].T])
    taps = w[own + "conv1d.weight"].T
    mixed = _silu(np.stack([(raw[i : i + r.convolution] * taps).sum(0) for i in range(n)]))
    keys = r.key_heads * r.key_dim
    q, k = (mixed[:, at : at + keys].reshape(n, r.key_heads, r.key_dim) for at in (0, keys))
    v = mixed[:, 2 * keys :].reshape(n, r.value_heads, r.value_dim)
    q, k = (h / np.sqrt((h * h).sum(-1, keepdims=True) + 1e-6) for h in (q, k))
    group = r.value_heads // r.key_heads
    heads = [h % r.key_heads if r.tiled else h // group for h in range(r.value_heads)]
    a, b, z = (x @ w[f"{own}in_proj_{part}.weight"].T for part in "abz")
    decay = np.exp(w[own + "decay"] * np.log1p(np.exp(a + w[own + "dt_bias"])))
    out = np.zeros((n, r.value_heads, r.value_dim))
    for h, key_head in enumerate(heads):
        state = np.zeros((r.key_dim, r.value_dim))
        for i in range(n):
            state *= decay[i, h]
            key = k[i, key_head]
            state += np.outer(key, (v[i, h] - key @ state) * _sigmoid(b[i, h]))
            out[i, h] = q[i, key_head] @ state / np.sqrt(r.key_dim)
    normed = _norm(out, w[own + "norm.weight"], c.rms_norm_eps) * _silu(z).reshape(out.shape)
    return normed.reshape(n, -1) @ w[own + "out_proj.weight"].T
