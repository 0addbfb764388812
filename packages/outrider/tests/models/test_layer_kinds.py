"""Kinds of layers, and the number of weights, of a model with recurrent layers."""

from __future__ import annotations

from dataclasses import replace

from outrider.models.config import Experts, ModelConfig, RecurrentLayers
from outrider.models.layer_kinds import kind_of, layer_kinds, num_layer_weights

HYBRID = ModelConfig(
    family="qwen3_5_text",
    vocab_size=100,
    hidden_size=8,
    intermediate_size=16,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    max_seq_len=32,
    gated_attention=True,
    recurrent=RecurrentLayers(
        layers=(True, True, True, False), key_heads=2, value_heads=4, key_dim=4, value_dim=8, convolution=4
    ),
)


def test_a_recurrent_layer_has_no_kind_of_attention() -> None:
    assert HYBRID.attention_layers == (3,)
    assert [HYBRID.is_recurrent(layer) for layer in range(4)] == [True, True, True, False]
    assert len(layer_kinds(HYBRID)) == 1
    assert kind_of(HYBRID, 3) == 0
    assert not HYBRID.is_llama


def test_the_channels_of_the_convolution_are_queries_keys_and_values() -> None:
    recurrent = HYBRID.recurrent
    assert recurrent is not None
    assert (recurrent.channels, recurrent.values, recurrent.count) == (2 * 2 * 4 + 4 * 8, 4 * 8, 3)


def test_the_weights_of_all_matrices_are_counted() -> None:
    mlp = 3 * 16 * 8
    recurrent = 8 * (48 + 32 + 4 + 4) + 32 * 8  # q, k and v; z; b; a; out
    attention = 8 * (2 * 16 + 8 + 8) + 16 * 8  # query and gate; k; v; out
    assert num_layer_weights(HYBRID) == 3 * recurrent + attention + 4 * mlp
    experts = Experts(count=8, used=2, size=4, normalised=True, shared_size=6)
    sparse = replace(HYBRID, experts=experts)
    router_and_shared = 8 * 8 + 3 * 6 * 8
    assert num_layer_weights(sparse) == 3 * recurrent + attention + 4 * (router_and_shared + 8 * 3 * 4 * 8)
    assert num_layer_weights(sparse, used=True) == 3 * recurrent + attention + 4 * (router_and_shared + 2 * 3 * 4 * 8)
