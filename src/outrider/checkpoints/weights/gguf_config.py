"""The metadata of a GGUF file as a ``ModelConfig``; a key that may change the output and is not computed is refused.

llama.cpp reads ``ARCH.*``, ``tokenizer.*``, ``split.*`` and a few of ``general.*``. Keys of other names, which tools
write about themselves, change nothing for any reader, and pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from outrider.checkpoints.hf_config import parse_config
from outrider.checkpoints.weights.gguf_families import GGUF_FAMILIES, MIXTRAL, GGUFFamily, shortest
from outrider.checkpoints.weights.gguf_header import GGUFHeader
from outrider.checkpoints.weights.gguf_rope import ROPE_HARMLESS, ROPE_READ, read_gguf_rope
from outrider.errors import ModelFormatError
from outrider.models.config import ModelConfig
from outrider.utils.json_files import shown

__all__ = ["kind_of_gguf", "read_gguf_config"]

READ: tuple[str, ...] = (
    *("embedding_length", "feed_forward_length", "block_count", "context_length", "attention.head_count"),
    *("attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.sliding_window"),
    *("attention.layer_norm_rms_epsilon", *ROPE_READ),
)
"""Keys of ``ARCH.`` that become part of the configuration, or are compared with it."""

HARMLESS: Mapping[str, tuple[str, ...]] = {
    "the embedding's own shape says it": ("vocab_size",),
    "of embeddings and classifiers, whose tensors are refused": (
        *("pooling_type", "classifier.output_labels", "classifier.pooling_type"),
    ),
    "of the other kind of norm": ("attention.layer_norm_epsilon",),
    "of rotary scalings that are refused, or notes": ROPE_HARMLESS,
}
"""Keys of ``ARCH.`` without effect, by reason."""

_OFF: Mapping[str, tuple[Any, ...]] = {  # features that are not implemented, and the values that leave them off
    "expert_count": (0,),
    "expert_used_count": (0,),
    "attention.causal": (True,),
    "attention.scale": (0.0,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "use_parallel_residual": (False,),
    "tensor_data_layout": ("Meta AI original pth",),  # q and k as llama.cpp's converter orders them
}

_TOKENIZER_OFF: Mapping[str, tuple[Any, ...]] = {
    "tokenizer.ggml.normalizer.lowercase": (False,),
    "tokenizer.ggml.normalizer.strip_accents": (False,),
    "tokenizer.ggml.add_sep_token": (False,),
}


def read_gguf_config(path: Path, header: GGUFHeader) -> ModelConfig:
    """The configuration of a file. Raises ``ModelFormatError`` naming what is not implemented or contradicts itself."""
    try:
        return _read(path, header)
    except ModelFormatError as error:
        raise ModelFormatError(f"{path}: {error}") from None


def kind_of_gguf(header: GGUFHeader) -> GGUFFamily:
    """The family of a file. Raises ``ModelFormatError`` if it is not known."""
    arch = header.scalar("general.architecture")
    if arch == "llama" and header.scalar("llama.expert_count", 0) and "blk.0.ffn_gate_exps.weight" in header.tensors:
        return MIXTRAL
    if arch not in GGUF_FAMILIES:
        raise ModelFormatError(f"architecture {shown(arch)} is not supported: use one of {', '.join(GGUF_FAMILIES)}")
    return GGUF_FAMILIES[arch]


def _read(path: Path, header: GGUFHeader) -> ModelConfig:
    get = header.scalar
    arch, kind = get("general.architecture"), kind_of_gguf(header)
    _check_general(header)
    _check_keys(header, arch, kind)
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFormatError("tensor token_embd.weight is missing: download the file again")
    heads, width = get(f"{arch}.attention.head_count"), get(f"{arch}.embedding_length")
    raw = {
        "model_type": kind.family,
        "vocab_size": embedding.shape[0],
        "hidden_size": width,
        "intermediate_size": get(f"{arch}.feed_forward_length"),
        "num_hidden_layers": get(f"{arch}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": get(f"{arch}.attention.head_count_kv", heads),
        "max_position_embeddings": get(f"{arch}.context_length"),
        "rms_norm_eps": shortest(get(f"{arch}.{kind.eps}")),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "bos_token_id": get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": [get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")],
    }
    head_dim = get(f"{arch}.attention.key_length")
    if head_dim is None and all(isinstance(n, int) and n > 0 for n in (heads, width)):
        head_dim = width // heads  # as in llama.cpp, whatever the family
    turned = get(f"{arch}.rope.dimension_count", head_dim)
    if kind.partial and isinstance(turned, int) and isinstance(head_dim, int) and 0 < turned <= head_dim:
        raw["partial_rotary_factor"] = turned / head_dim
    rope = read_gguf_rope(arch, header, path, head_dim)
    config = parse_config(raw | {"head_dim": head_dim} | rope | kind.read(arch, header))
    whole = {"rope.dimension_count": config.rotary_dim or config.head_dim, "attention.value_length": config.head_dim}
    for key, wanted in whole.items():
        value = get(f"{arch}.{key}", wanted)
        if value != wanted:
            raise ModelFormatError(
                f"{arch}.{key}={shown(value)} is not supported: a head has {config.head_dim} dimensions, all rotated"
            )
    if not kind.reads_window:
        _check_window(get(f"{arch}.attention.sliding_window"), arch, config.max_seq_len)
    return config


def _check_general(header: GGUFHeader) -> None:
    kind = header.scalar("general.type", "model")
    if kind != "model":
        raise ModelFormatError(f"general.type={shown(kind)}: this file is no model, use the one it belongs to")
    if header.scalar("split.count", 0) not in (0, 1):
        raise ModelFormatError(
            f"split.count={shown(header.scalar('split.count'))}: this is one part of a model, merge them first "
            "(llama-gguf-split --merge)"
        )
    for key, off in _TOKENIZER_OFF.items():
        if header.scalar(key, off[0]) not in off:
            raise ModelFormatError(
                f"{key}={shown(header.scalar(key))} is not supported: use another file of this model"
            )
    sentencepiece = header.scalar("tokenizer.ggml.model") == "llama"
    if sentencepiece and header.scalar("tokenizer.ggml.add_space_prefix", True) is not True:
        raise ModelFormatError(
            "tokenizer.ggml.add_space_prefix=false is not supported, as transformers reads such a file otherwise: use "
            "the model's safetensors files"
        )
    forbidden = header.metadata.get("tokenizer.ggml.suppress_tokens")
    if forbidden is not None and np.size(forbidden):
        raise ModelFormatError("tokenizer.ggml.suppress_tokens forbids tokens, which is not applied: remove it")


def _check_keys(header: GGUFHeader, arch: str, kind: GGUFFamily) -> None:
    passing = {*READ, kind.eps, *kind.keys, *(name for names in HARMLESS.values() for name in names)}
    for key in header.metadata:
        space, _, name = key.partition(".")
        if space != arch or name in passing:
            continue
        value = header.scalar(key)
        if name in _OFF:
            if value not in _OFF[name]:
                raise ModelFormatError(f"{key}={shown(value)} is not supported: use a model without it")
            continue
        raise ModelFormatError(
            f"{shown(key)}: {shown(value)} is not known here and may change what the model computes: if it does not, "
            "remove it"
        )


def _check_window(window: object, arch: str, context: int) -> None:
    """llama.cpp attends to everything in these architectures, transformers to a window: no matter in short contexts."""
    if window is None or window == 0:
        return
    if not isinstance(window, int) or isinstance(window, bool) or window < context:
        raise ModelFormatError(
            f"{arch}.attention.sliding_window={shown(window)} is less than the context of {context}: llama.cpp would "
            "ignore it and the model's authors would not; use the model's safetensors files"
        )
