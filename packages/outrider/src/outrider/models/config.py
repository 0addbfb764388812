"""Dimensions and constants of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from outrider.cache.states import StateShape
from outrider.models.clamped import ClampedSwiGLU
from outrider.models.experts import Experts
from outrider.models.gemma4 import Gemma4
from outrider.models.latent import LatentAttention
from outrider.models.temperature import QueryTemperature

__all__ = ["Experts", "ModelConfig", "RecurrentLayers"]


Recurrence = Literal["delta", "short", "mamba2"]
"""Gated DeltaNet; a short gated convolution without a state (one head, of the hidden size, and no keys); Mamba-2."""


Alone = Literal["mixer", "mlp"]
"""A layer that is attention or recurrence without an MLP, or an MLP or experts without these."""


@dataclass(frozen=True, kw_only=True)
class RecurrentLayers:
    """Layers that keep a state of fixed size for each sequence, in place of attention."""

    layers: tuple[bool, ...]  # for each layer, whether it is recurrent
    key_heads: int
    value_heads: int  # a multiple of the key heads
    key_dim: int  # of a head
    value_dim: int
    convolution: int  # rows of the sequence that the convolution reads
    tiled: bool = False  # value head v reads key head v % key_heads, as in GGUF; else v // (value_heads // key_heads)
    kind: Recurrence = "delta"
    convolution_bias: bool = False
    projection_bias: bool = False  # on the projections into and out of the layer

    @property
    def channels(self) -> int:
        """Numbers that the convolution reads of one row: queries, keys and values of all heads."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def values(self) -> int:
        """Numbers of a row's values in all heads."""
        return self.value_heads * self.value_dim

    @property
    def projections(self) -> dict[str, int]:
        """Outputs of the projections of the hidden size, by name."""
        if self.kind == "short":
            return {"in_proj_qkv": 3 * self.values}
        gates = ("in_proj_b", "in_proj_a") if self.kind == "delta" else ("in_proj_a",)
        return {"in_proj_qkv": self.channels, "in_proj_z": self.values, **dict.fromkeys(gates, self.value_heads)}

    @property
    def count(self) -> int:
        """The number of recurrent layers."""
        return sum(self.layers)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Dimensions and constants of a model, the same for every file format.

    The fields after ``bos_token_id`` are differences from Llama; their defaults are Llama's values.
    """

    family: str  # as ``model_type`` in config.json
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_seq_len: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, Any] = field(default_factory=dict)  # as in config.json; empty: none
    attention_bias: bool = False  # biases on q, k, v (Qwen2)
    qk_norm: bool = False  # RMS norm on each head of q and k (Qwen3)
    tie_embeddings: bool = False
    sliding_window: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None

    # Attention
    rotary_dim: int | None = None  # the number of first dimensions of a head that are rotated; None: all
    rope_layers: tuple[bool, ...] = ()  # for each layer, whether it rotates; empty: all
    window_layers: tuple[bool, ...] = ()  # for each layer, whether it has the sliding window; empty: all
    chunked_windows: bool = False  # a window begins at the last position that is a multiple of its size
    local_rope_theta: float | None = None  # rope_theta of layers with the window, never scaled; None: the same
    output_bias: bool = False  # on the output projection
    whole_qk_norm: bool = False  # ``qk_norm`` is over all heads together
    rotated_qk_norm: bool = False  # ``qk_norm`` comes behind the rotation
    unit_qk_norm: bool = False  # q and k have such a norm, without weights, in the layers that rotate
    query_temperature: QueryTemperature | None = None  # queries have a factor by position
    attention_scale: float | None = None  # of scores; None: 1 / sqrt(head_dim)
    attention_cap: float | None = None  # scores become cap * tanh(score / cap)
    gated_attention: bool = False  # q_proj gives query and gate of each head; the head's output is times its sigmoid
    attention_sinks: bool = False  # each head has a score more in the softmax, without a value
    recurrent: RecurrentLayers | None = None  # layers without attention
    latent: LatentAttention | None = None  # attention on latents: one key head, of the size of a row in the cache

    # The rest of a layer
    alone: tuple[Alone | None, ...] = ()  # for each layer, the part that it is alone; None: both; empty: all have both
    norms: Literal["before", "after", "both"] = "before"  # norms come before or after attention and MLP
    layer_norm: bool = False  # norms subtract the mean and add a bias
    activation: Literal["silu", "gelu_tanh", "relu_squared"] = "silu"  # the last is never gated
    clamped_swiglu: ClampedSwiGLU | None = None  # in place of the activation
    gated: bool = True  # the activation of one projection is multiplied with another
    mlp_bias: bool = False
    experts: Experts | None = None
    residual_scale: float = 1.0  # factor of the outputs of attention and MLP

    gemma4: Gemma4 | None = None

    # Before and after the layers
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_cap: float | None = None  # logits become cap * tanh(logit / cap), after their scale

    mtp_layers: int = 0  # layers of the draft head (multi-token prediction) in the model's files; the model has none

    @property
    def differences(self) -> frozenset[str]:
        """The fields in which layers are not Llama's; biases on q, k and v, and norms on q and k are none of them."""
        own = (f for f in fields(self) if f.name in _DIFFERENCES)
        return frozenset(f.name for f in own if getattr(self, f.name) != f.default)

    @property
    def is_llama(self) -> bool:
        """Whether the layers are Llama's, except for biases or norms on q and k."""
        return not self.differences

    @property
    def needed_input(self) -> str:
        """The input that requests must give to the model's encoder, in words; empty: it has no encoder."""
        return ""

    @property
    def hears(self) -> bool:
        """Whether the model's input is sound."""
        return False

    @property
    def attached_numbers(self) -> int:
        """The most numbers that a sequence holds beside its rows of the cache; 0 if they are negligible."""
        return 0

    @property
    def rope_dim(self) -> int:
        """Dimensions that rotation tables have: those of a head, or of its rotated part where there are latents."""
        return self.head_dim if self.latent is None else self.latent.rotated

    @property
    def value_dim(self) -> int:
        """Numbers at the beginning of a cached key that are its value; 0: values are cached apart."""
        return 0 if self.latent is None else self.latent.rank

    def window(self, layer: int) -> int | None:
        """Positions that a row of the layer attends to, its own included; None: all."""
        return self.sliding_window if not self.window_layers or self.window_layers[layer] else None

    def rope(self, layer: int) -> tuple[float, Mapping[str, Any]] | None:
        """Base and scaling of a layer's rotation; None: the layer rotates nothing."""
        if self.rope_layers and not self.rope_layers[layer]:
            return None
        if self.local_rope_theta is not None and self.window(layer) is not None:
            return self.local_rope_theta, {}
        return self.rope_theta, self.rope_scaling

    def is_sparse(self, layer: int) -> bool:
        """Whether a layer has experts in place of its MLP."""
        return self.experts is not None and (not self.experts.layers or self.experts.layers[layer])

    @property
    def states(self) -> StateShape | None:
        """The dimensions of a sequence's recurrent states; None without recurrent layers."""
        r = self.recurrent
        if r is None:
            return None
        return StateShape(
            layers=r.count,
            key_heads=r.key_heads,
            value_heads=r.value_heads,
            key_dim=r.key_dim,
            value_dim=r.value_dim,
            convolution=r.convolution,
        )

    def has_mixer(self, layer: int) -> bool:
        """Whether a layer has attention or a recurrent state."""
        return not self.alone or self.alone[layer] != "mlp"

    def has_mlp(self, layer: int) -> bool:
        """Whether a layer has an MLP or experts."""
        return not self.alone or self.alone[layer] != "mixer"

    def is_recurrent(self, layer: int) -> bool:
        """Whether a layer keeps a state in place of attention."""
        return self.recurrent is not None and self.recurrent.layers[layer]

    def head_dim_of(self, layer: int) -> int:
        """The dimensions of a layer's heads."""
        full = self.gemma4 is not None and self.window(layer) is None
        return self.gemma4.full_head_dim if self.gemma4 is not None and full else self.head_dim

    def kv_heads_of(self, layer: int) -> int:
        """The key heads of a layer."""
        full = self.gemma4 is not None and self.window(layer) is None
        return self.gemma4.full_kv_heads if self.gemma4 is not None and full else self.num_kv_heads

    def inner_of(self, layer: int) -> int:
        """The intermediate size of a layer's MLP."""
        shares = self.gemma4 is not None and self.gemma4.reads[layer] is not None
        return self.gemma4.sharing_size if self.gemma4 is not None and shares else self.intermediate_size

    @property
    def widest_head(self) -> int:
        """The dimensions of a head in the layers where it has most."""
        return self.head_dim if self.gemma4 is None else max(self.head_dim, self.gemma4.full_head_dim)

    @property
    def cache_layers(self) -> tuple[int, ...]:
        """The layers with keys and values of their own, in the order in which a cache has them."""
        shared = () if self.gemma4 is None else self.gemma4.reads
        return tuple(layer for layer in self.attention_layers if not shared or shared[layer] is None)

    @property
    def cache_heads(self) -> tuple[tuple[int, int], ...]:
        """Key heads and their dimensions in each of ``cache_layers``; empty: they are alike."""
        if self.gemma4 is None:
            return ()
        return tuple((self.kv_heads_of(layer), self.head_dim_of(layer)) for layer in self.cache_layers)

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """The layers with attention, in order: those that have keys and values in a cache."""
        return tuple(i for i in range(self.num_layers) if self.has_mixer(i) and not self.is_recurrent(i))


_DIFFERENCES = (
    *("rotary_dim", "rope_layers", "window_layers", "local_rope_theta", "output_bias", "whole_qk_norm"),
    *("rotated_qk_norm", "unit_qk_norm", "chunked_windows", "query_temperature"),
    *("attention_scale", "attention_cap", "gated_attention", "attention_sinks", "recurrent", "latent", "gemma4"),
    *("alone", "norms", "layer_norm", "activation", "clamped_swiglu", "gated", "mlp_bias", "experts", "residual_scale"),
    *("embedding_scale", "logit_scale", "logit_cap"),
)
