"""A narrower copy of the target's first layers, to begin a draft with (after SliceGPT, Ashkboos et al. 2024).

The residual stream is rotated to the principal directions of the target's embedding, and the first W are kept.
Heads and intermediate sizes stay::

    V [d, W]          directions, the longest first          E V          embedding
    reads  A [n, d]   A diag(norm) V sqrt(d / W)             norms of 1, as those of the target are in A
    writes B [d, n]   Vᵀ B

A row of W has the root mean square of its own values, and not of all d: hence sqrt(d / W).
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.models.config import ModelConfig
from outrider_train.target.llama import Llama

_READERS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
_WRITERS = ("self_attn.o_proj", "mlp.down_proj")
_EMBEDDING, _NORM, _HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


def principal_directions(rows: Tensor, width: int) -> Tensor:
    """The orthogonal directions in which ``rows`` [n, d] are longest: float32 [d, width], the longest first."""
    found: Tensor = torch.linalg.eigh(rows.T @ rows).eigenvectors.flip(1)
    return found[:, :width].contiguous()


@torch.no_grad()
def narrowed(target: Llama, config: ModelConfig) -> dict[str, Tensor]:
    """The state, in float32, of ``target``'s first ``config.num_layers`` layers with ``config.hidden_size`` columns."""
    state = {name: value.detach().float().cpu() for name, value in target.state_dict().items()}
    turn = principal_directions(state[_EMBEDDING], config.hidden_size)
    gain = float((target.config.hidden_size / config.hidden_size) ** 0.5)
    out = {_EMBEDDING: state[_EMBEDDING] @ turn, _NORM: torch.ones(config.hidden_size)}
    if target.lm_head is not None:
        out[_HEAD] = (state[_HEAD] * state[_NORM]) @ turn * gain
    else:  # the head is the embedding, so only the diagonal of the rotated norm can be kept
        out[_NORM] = (turn * state[_NORM][:, None] * turn).sum(0) * gain
    for i in range(config.num_layers):
        layer = f"model.layers.{i}."
        for name, value in state.items():
            if name.startswith(layer):
                out[name] = _narrow(name.removeprefix(layer), value, state, layer, turn, gain)
    return out


def _narrow(part: str, value: Tensor, state: dict[str, Tensor], layer: str, turn: Tensor, gain: float) -> Tensor:
    """One tensor of a layer."""
    module = part.removesuffix(".weight")
    if module in ("input_layernorm", "post_attention_layernorm"):
        return torch.ones(turn.shape[1])  # its weights are in the matrices that read it
    if module in _READERS:
        norm = "input_layernorm" if module.startswith("self_attn") else "post_attention_layernorm"
        return (value * state[f"{layer}{norm}.weight"]) @ turn * gain
    if module in _WRITERS:
        return turn.T @ value
    return value  # biases and norms of heads, which have no columns of the residual stream
