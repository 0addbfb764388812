"""The tensors a Llama-family checkpoint holds: canonical names and shapes, from the configuration alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from outrider.errors import ModelFormatError
from outrider.models.config import ModelConfig
from outrider.utils.json_files import shown

_HARMLESS = re.compile(r"(^|\.)rotary_emb\.inv_freq$")  # old files store what the configuration already says


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Canonical tensor name to shape, in the order a forward pass needs them."""
    d, ffn, head = config.hidden_size, config.intermediate_size, config.head_dim
    q, kv = config.num_heads * head, config.num_kv_heads * head
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, d)}
    for i in range(config.num_layers):
        layer = f"model.layers.{i}."
        shapes[layer + "input_layernorm.weight"] = (d,)
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            shapes[f"{layer}self_attn.{name}_proj.weight"] = (rows, d)
            if config.attention_bias:
                shapes[f"{layer}self_attn.{name}_proj.bias"] = (rows,)
        if config.qk_norm:
            shapes[layer + "self_attn.q_norm.weight"] = (head,)
            shapes[layer + "self_attn.k_norm.weight"] = (head,)
        shapes[layer + "self_attn.o_proj.weight"] = (d, q)
        shapes[layer + "post_attention_layernorm.weight"] = (d,)
        shapes[layer + "mlp.gate_proj.weight"] = (ffn, d)
        shapes[layer + "mlp.up_proj.weight"] = (ffn, d)
        shapes[layer + "mlp.down_proj.weight"] = (d, ffn)
    shapes["model.norm.weight"] = (d,)
    if not config.tie_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, d)
    return shapes


def check_shapes(config: ModelConfig, found: Mapping[str, tuple[int, ...]], where: Path) -> None:
    """Compare the shapes ``found`` in file headers with those ``config`` implies, before anything is loaded.

    Raises ``ModelFormatError`` naming the first tensor that is missing, of another shape, or unknown: a tensor we
    would leave out (a bias, an adapter, an expert) would silently make it another model.
    """
    if config.num_layers > max(len(found), 1):  # before building names for a count that may be a lie
        raise ModelFormatError(f"{where}: {config.num_layers} layers are declared, but there are {len(found)} tensors")
    expected = expected_shapes(config)
    for name, shape in expected.items():
        if name not in found:
            raise ModelFormatError(f"{where}: tensor {name} is missing (expected shape {list(shape)})")
        if found[name] != shape:
            raise ModelFormatError(
                f"{where}: tensor {name} has shape {list(found[name])}, but the configuration says {list(shape)}"
            )
    for name, shape in found.items():
        if name == "lm_head.weight" and shape != expected["model.embed_tokens.weight"]:
            raise ModelFormatError(f"{where}: tensor {name} has shape {list(shape)}, which is not the embedding's")
        if name not in expected and name != "lm_head.weight" and not _HARMLESS.search(name):
            raise ModelFormatError(
                f"{where}: tensor {shown(name)} belongs to no {config.family} model: adapters must be merged first"
            )
