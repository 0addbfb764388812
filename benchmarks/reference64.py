"""A forward pass of the Llama family in float64, from the weights of a GGUF file as the gguf package reads them.

Nothing is rounded on the way: neither activations nor keys and values. Written to be read, not to be fast.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from gguf import GGMLQuantizationType, dequantize
from torch import Tensor

from outrider.models.frequencies import inverse_frequencies
from outrider.native.stored import StoredTensor
from outrider.weights.files.checkpoint import Checkpoint

_FLOATS = {"F32": np.float32, "F16": np.float16}  # dequantize wants these as they are, the others as bytes


def weight(stored: StoredTensor) -> Tensor:
    """float64, of the tensor's shape: its numbers."""
    data = np.ascontiguousarray(stored.data).view(_FLOATS.get(stored.type, np.uint8))
    rows = data.reshape(-1) if len(stored.shape) == 1 else data.reshape(stored.shape[0], -1)
    values = torch.tensor(dequantize(rows, GGMLQuantizationType[stored.type]), dtype=torch.float64).view(stored.shape)
    return values if stored.order is None else values[torch.from_numpy(stored.order)]


def logits(checkpoint: Checkpoint, texts: Sequence[Tensor]) -> list[Tensor]:
    """float64 [n, vocabulary] for each text (int64 [n]). Weights are read once, layer by layer."""
    return _Forward(checkpoint, [len(text) for text in texts]).run(torch.cat(list(texts)))


class _Forward:
    def __init__(self, checkpoint: Checkpoint, lengths: Sequence[int]) -> None:
        self.config, self.stored, self.lengths = checkpoint.config, checkpoint.stored, list(lengths)
        c = self.config
        inverse = torch.from_numpy(inverse_frequencies(c.head_dim, c.rope_theta, c.rope_scaling))
        self.angles = torch.cat([torch.arange(n).double()[:, None] * inverse for n in lengths])  # [tokens, head_dim/2]

    def run(self, tokens: Tensor) -> list[Tensor]:
        embedding = weight(self.stored["model.embed_tokens.weight"])
        x = embedding[tokens]
        for i in range(self.config.num_layers):
            name = f"model.layers.{i}."
            x = x + self.attention(self.norm(x, name + "input_layernorm"), name + "self_attn.")
            x = x + self.mlp(self.norm(x, name + "post_attention_layernorm"), name + "mlp.")
        head = embedding if self.config.tie_embeddings else weight(self.stored["lm_head.weight"])
        return list((self.norm(x, "model.norm") @ head.T).split(self.lengths))

    def linear(self, x: Tensor, name: str) -> Tensor:
        y = x @ weight(self.stored[name + ".weight"]).T
        return y + weight(self.stored[name + ".bias"]) if name + ".bias" in self.stored else y

    def norm(self, x: Tensor, name: str) -> Tensor:
        mean = x.square().mean(-1, keepdim=True)
        return x * (mean + self.config.rms_norm_eps).rsqrt() * weight(self.stored[name + ".weight"])

    def mlp(self, x: Tensor, name: str) -> Tensor:
        gate = torch.nn.functional.silu(self.linear(x, name + "gate_proj"))
        return self.linear(gate * self.linear(x, name + "up_proj"), name + "down_proj")

    def attention(self, x: Tensor, name: str) -> Tensor:
        c = self.config
        q, k, v = (self.linear(x, f"{name}{part}_proj").view(len(x), -1, c.head_dim) for part in "qkv")
        if c.qk_norm:
            q, k = self.norm(q, name + "q_norm"), self.norm(k, name + "k_norm")
        group = c.num_heads // c.num_kv_heads
        texts = (self.rotate(q), self.rotate(k).repeat_interleave(group, 1), v.repeat_interleave(group, 1))
        mixed = map(self.attend, *(part.split(self.lengths) for part in texts))
        return self.linear(torch.cat(list(mixed)).flatten(1), name + "o_proj")

    def rotate(self, x: Tensor) -> Tensor:
        """Halves of each head as pairs, by each token's position: x [tokens, heads, head_dim]."""
        a, b = x.chunk(2, dim=-1)
        cosine, sine = self.angles.cos()[:, None], self.angles.sin()[:, None]
        return torch.cat((a * cosine - b * sine, a * sine + b * cosine), dim=-1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """One text, [n, heads, head_dim] each."""
        scores = torch.einsum("qhd,khd->hqk", q, k) / self.config.head_dim**0.5
        back = torch.arange(len(q))[:, None] - torch.arange(len(k))
        seen = (back >= 0) & (back < (self.config.sliding_window or len(k)))
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, v)
