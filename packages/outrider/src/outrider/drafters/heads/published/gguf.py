"""Published DFlash and DSpark heads in GGUF files, as llama.cpp's converter writes them (architecture ``dflash``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.errors import ModelFormatError
from outrider.utils.json_files import shown
from outrider.weights.families.base import words
from outrider.weights.gguf.header import GGUFHeader
from outrider.weights.gguf.reader import map_tensors
from outrider.weights.gguf.shards import read_gguf

__all__ = ["read_gguf_config", "read_gguf_tensors"]

_ARCH = "dflash"
_SIZES = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "block_size": "block_size",
    "target_layers": "aux_hidden_state_layer_ids",
    "sample_from_anchor": "sample_from_anchor",
    "has_confidence_head": "enable_confidence_head",
    "attention.sliding_window": "sliding_window",
    "attention.causal": "is_causal",
}
_PASSING = words(
    "attention.value_length attention.sliding_window_pattern rope.dimension_count rope.dimension_sections vocab_size"
)
"""Of the last but two: a text's positions are the same in all sections."""
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_sinks": "self_attn.sinks",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OTHERS = {
    "fc": "fc",
    "enc.output_norm": "hidden_norm",
    "output_norm": "norm",
    "output": "lm_head",
    "token_embd": "embed_tokens",
    "markov_w1": "markov_head.markov_w1",
    "markov_w2": "markov_head.markov_w2",
    "conf_proj": "confidence_head.proj",
}


def read_gguf_config(path: Path) -> dict[str, Any]:
    """The head's configuration in the words of published ``config.json`` files.

    Raises ``ModelFormatError`` for another architecture, and for a key that would change the drafts.
    """
    header = read_gguf(path)
    if (arch := header.metadata.get("general.architecture")) != _ARCH:
        raise ModelFormatError(f"an {shown(arch)} is no draft head: {_ARCH} is")
    raw: dict[str, Any] = {"model_type": "qwen3"}
    for key, value in header.metadata.items():
        if not key.startswith(f"{_ARCH}."):
            continue
        name = key.removeprefix(f"{_ARCH}.")
        if name in _SIZES:
            raw[_SIZES[name]] = value.tolist() if isinstance(value, np.ndarray) else value
        elif name not in _PASSING:
            raise ModelFormatError(f"{key}={shown(value)} is not understood")
    if header.scalar(f"{_ARCH}.rope.dimension_count", raw.get("head_dim")) != raw.get("head_dim"):
        raise ModelFormatError("heads that are rotated in part are not supported")
    raw["mask_token_id"] = header.metadata.get("tokenizer.ggml.mask_token_id")
    return raw | _from_tensors(header, raw)


def _from_tensors(header: GGUFHeader, raw: dict[str, Any]) -> dict[str, Any]:
    """Keys that llama.cpp reads from shapes of tensors, and windows by layer."""
    rows = {name: tensor.shape[0] for name, tensor in header.tensors.items()}
    found: dict[str, Any] = {"vocab_size": len(header.metadata.get("tokenizer.ggml.tokens", ()))}
    if "d2t" in rows:
        found["draft_vocab_size"] = rows["d2t"]
    if raw.get("sliding_window"):
        pattern = header.metadata.get(f"{_ARCH}.attention.sliding_window_pattern", ())
        found["layer_types"] = ["sliding_attention" if local else "full_attention" for local in pattern]
        found["use_sliding_window"] = True
    if "markov_w1.weight" not in rows:
        return found | {"architectures": ["DFlashDraftModel"]}
    rank, hidden = header.tensors["markov_w1.weight"].shape[1], raw.get("hidden_size")
    reads = "conf_proj.weight" in rows and header.tensors["conf_proj.weight"].shape[-1] != hidden
    return found | {
        "architectures": ["DSparkDraftModel"],
        "markov_rank": rank,
        "enable_confidence_head": "conf_proj.weight" in rows,
        "confidence_head_with_markov": reads,
        "sample_from_anchor": raw.get("sample_from_anchor", True),
        "attention_sink_bias": any("attn_sinks" in name for name in rows),
    }


def read_gguf_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """The head's tensors under the names of published safetensors files.

    Raises ``ModelFormatError`` for blocks of quantised numbers: drafts of such heads need 16 bits.
    """
    header = read_gguf(path)
    stored = map_tensors(header, {name: name for name in header.tensors if name != "d2t"})
    found: dict[str, NDArray[Any]] = {}
    for name, tensor in stored.items():
        if name.startswith("token_embd"):
            continue  # a copy of the target's
        try:
            numbers = tensor.numbers()
        except ModelFormatError:
            raise ModelFormatError(
                f"{shown(name)} is of type {tensor.type}: convert the head with --outtype bf16"
            ) from None
        if not bool(np.isfinite(numbers).all()):
            raise ModelFormatError(f"tensor {shown(name)} holds values that are not numbers")
        found[_published(name)] = numbers.reshape(1, -1) if name == "conf_proj.weight" else numbers
    if "d2t" in header.tensors:
        place = header.tensors["d2t"]
        ids = np.fromfile(place.file, np.int64, place.shape[0], offset=place.start)
        found["d2t"] = ids - np.arange(len(ids))  # as published: the distance from a draft token's id to the target's
    return found


def _published(name: str) -> str:
    """A tensor's published name; unchanged if it is unknown, which its reader refuses."""
    stem, _, kind = name.rpartition(".")
    if stem.startswith("blk."):
        _, layer, own = stem.split(".", 2)
        own = _BLOCK.get(own, own)
        return f"layers.{layer}.{own}" if own.endswith("sinks") else f"layers.{layer}.{own}.{kind}"
    return f"{_OTHERS.get(stem, stem)}.{kind}"
