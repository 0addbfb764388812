"""llama2.c files: a header of seven numbers, float32 weights in a fixed order, and a scored vocabulary."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from outrider.errors import ModelFormatError
from outrider.models.config import ModelConfig
from outrider.native.stored import StoredTensor
from outrider.weights.files.checkpoint import Checkpoint
from outrider.weights.files.layout import expected_shapes
from outrider.weights.files.parts import find_parts
from outrider.weights.hf_config.config import parse_config

_HEADER = struct.Struct("<7i")
_ORDER = (  # for each name, the tensors of all layers follow one another
    "input_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "post_attention_layernorm",
    "mlp.gate_proj",
    "mlp.down_proj",
    "mlp.up_proj",
)


def open_llama2c(path: Path) -> Checkpoint:
    """Open a llama2.c model file; tensors are memory-mapped. Raises ``ModelFormatError`` if its size is wrong."""
    size = path.stat().st_size
    if size < _HEADER.size:
        raise ModelFormatError(f"{path} is damaged: {size} bytes hold no header; download it again")
    with path.open("rb") as file:
        dim, hidden, layers, heads, kv_heads, vocab, length = _HEADER.unpack(file.read(_HEADER.size))
    config = parse_config(
        {
            "model_type": "llama",
            "vocab_size": abs(vocab),
            "hidden_size": dim,
            "intermediate_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "max_position_embeddings": length,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": vocab > 0,  # a negative size says that a separate LM head ends the file
            "bos_token_id": 1,
            "eos_token_id": [2, 1],  # these models end a text by beginning the next
        }
    )
    if layers > size:
        raise ModelFormatError(f"{path} is damaged: it claims {layers} layers in {size:,} bytes; download it again")
    starts, end = _place(config)
    if end != size:
        raise ModelFormatError(f"{path} is damaged: its header describes {end:,} bytes, it has {size:,}")
    stored = _stored_tensors(path, config, starts)
    return Checkpoint(config, stored)


def read_vocabulary(path: Path, vocab_size: int) -> list[tuple[bytes, float]]:
    """A llama2.c ``tokenizer.bin``: each token's bytes and score, in id order. Raises ``ModelFormatError``."""
    data = path.read_bytes()
    tokens: list[tuple[bytes, float]] = []
    at = 4  # the length of the longest token comes first; it is not needed
    for _ in range(vocab_size):
        if at + 8 > len(data):
            raise ModelFormatError(f"{path} is damaged: it ends after {len(tokens)} of {vocab_size} tokens")
        score, length = struct.unpack_from("<fi", data, at)
        if not 0 <= length <= len(data) - at - 8:
            raise ModelFormatError(f"{path} is damaged: token {len(tokens)} claims {length} bytes")
        tokens.append((data[at + 8 : at + 8 + length], score))
        at += 8 + length
    if at != len(data):
        raise ModelFormatError(f"{path} is damaged: {len(data) - at} bytes follow the last token")
    return tokens


def _place(config: ModelConfig) -> tuple[dict[str, int], int]:
    """Byte offset of every tensor, and of the end of the file."""
    shapes = expected_shapes(config)
    starts: dict[str, int] = {}
    at = _HEADER.size

    def put(name: str) -> None:
        nonlocal at
        starts[name] = at
        at += 4 * math.prod(shapes[name])

    put("model.embed_tokens.weight")
    for name in _ORDER:
        for i in range(config.num_layers):
            put(f"model.layers.{i}.{name}.weight")
    put("model.norm.weight")
    at += 4 * config.max_seq_len * config.head_dim  # tables of cosines and sines that rope_theta implies
    if not config.tie_embeddings:
        put("lm_head.weight")
    return starts, at


def _stored_tensors(path: Path, config: ModelConfig, starts: Mapping[str, int]) -> dict[str, StoredTensor]:
    data = np.memmap(path, mode="r", dtype=np.uint8)
    shapes, parts = expected_shapes(config), find_parts(config, str, interleaved=True)[0]
    stored = {}
    for name, start in starts.items():
        values = data[start : start + 4 * math.prod(shapes[name])]
        stored[name] = StoredTensor("F32", shapes[name], values, parts[name].order)
    return stored
