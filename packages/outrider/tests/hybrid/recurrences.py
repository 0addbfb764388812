"""Short convolutions and Mamba-2 by NumPy in float64, row by row; and random weights of recurrent layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.models.config import ModelConfig, RecurrentLayers

Doubles = NDArray[np.float64]
Mixer = Callable[[ModelConfig, Mapping[str, Doubles], str, Doubles], Doubles]
"""The output of a layer, [n, d], of its weights and normed input [n, d]."""


def put_recurrent(put: Any, r: RecurrentLayers, own: str, d: int) -> None:
    """Random weights of a recurrent layer of ``d`` inputs; decays are logarithms of the negative ones."""
    for part in (f"in_proj_{x}" for x in ("qkv", "z", "a", "b") if f"in_proj_{x}" in r.projections):
        rows = r.projections[part]
        put(f"{own}{part}.weight", rows, d)
        if r.projection_bias:
            put(f"{own}{part}.bias", rows, scale=0.3)
    put(own + "out_proj.weight", d, r.values)
    if r.projection_bias:
        put(own + "out_proj.bias", d, scale=0.3)
    put(own + "conv1d.weight", r.channels, r.convolution, scale=0.6)
    if r.convolution_bias:
        put(own + "conv1d.bias", r.channels, scale=0.3)
    if r.kind == "short":
        return
    put(own + "decay", r.value_heads, scale=0.7)
    put(own + "dt_bias", r.value_heads, scale=1.0)
    if r.kind == "mamba2":
        put(own + "skip", r.value_heads, scale=0.3, plus=1.0)
    put(own + "norm.weight", r.values if r.kind == "mamba2" else r.value_dim, scale=0.2, plus=1.0)


def _linear(w: Mapping[str, Doubles], name: str, x: Doubles) -> Doubles:
    made: Doubles = x @ w[f"{name}.weight"].T
    made += w.get(f"{name}.bias", np.zeros(1))
    return made


def _convolved(r: RecurrentLayers, w: Mapping[str, Doubles], own: str, x: Doubles) -> Doubles:
    raw = np.concatenate([np.zeros((r.convolution - 1, r.channels)), x])
    taps, bias = w[own + "conv1d.weight"].T, w.get(own + "conv1d.bias", np.zeros(1))
    found: Doubles = np.stack([(raw[i : i + r.convolution] * taps).sum(0) + bias for i in range(len(x))])
    return found


def _silu(x: Doubles) -> Doubles:
    made: Doubles = x / (1 + np.exp(-x))
    return made


def short_convolution(c: ModelConfig, w: Mapping[str, Doubles], name: str, x: Doubles) -> Doubles:
    r, own = c.recurrent, name + "linear_attn."
    assert r is not None
    factor, gate, value = np.split(_linear(w, own + "in_proj_qkv", x), 3, axis=-1)
    return _linear(w, own + "out_proj", gate * _convolved(r, w, own, factor * value))


def mamba2(c: ModelConfig, w: Mapping[str, Doubles], name: str, x: Doubles) -> Doubles:
    r, own, n = c.recurrent, name + "linear_attn.", len(x)
    assert r is not None
    mixed = _silu(_convolved(r, w, own, _linear(w, own + "in_proj_qkv", x)))
    keys = r.key_heads * r.key_dim
    q, k = (mixed[:, at : at + keys].reshape(n, r.key_heads, r.key_dim) for at in (0, keys))
    v = mixed[:, 2 * keys :].reshape(n, r.value_heads, r.value_dim)
    step = np.log1p(np.exp(_linear(w, own + "in_proj_a", x) + w[own + "dt_bias"]))
    out = np.zeros((n, r.value_heads, r.value_dim))
    for h in range(r.value_heads):
        state, key_head = np.zeros((r.key_dim, r.value_dim)), h // (r.value_heads // r.key_heads)
        for i in range(n):
            state = state * np.exp(step[i, h] * w[own + "decay"][h]) + np.outer(k[i, key_head], step[i, h] * v[i, h])
            out[i, h] = q[i, key_head] @ state + w[own + "skip"][h] * v[i, h]
    gated = out.reshape(n, -1) * _silu(_linear(w, own + "in_proj_z", x))
    groups = gated.reshape(n, r.key_heads, -1)
    normed = groups / np.sqrt((groups**2).mean(-1, keepdims=True) + c.rms_norm_eps)
    return _linear(w, own + "out_proj", normed.reshape(n, -1) * w[own + "norm.weight"])
