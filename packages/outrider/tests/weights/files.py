"""Small model files of every kind, made on the spot: two layers, a few hundred tokens, a few dozen kilobytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quantize
from safetensors.torch import save_file
from torch import Tensor

from outrider.models.config import ModelConfig
from outrider.weights.files.layout import expected_shapes
from outrider.weights.hf_config.config import parse_config

WORDS = ["\u2581", *"abcdehlorw", "\u2581h", "\u2581he", "lo", "\u2581hel", "\u2581hello", "or", "\u2581w"]
VOCABULARY = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
SCORES = [0.0] * 259 + [-float(i) for i in range(len(WORDS))]
TOKEN_TYPES = [2, 3, 3] + [6] * 256 + [1] * len(WORDS)
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"


def raw_config(family: str = "llama", **changes: Any) -> dict[str, Any]:
    """``config.json`` of a tiny model."""
    raw: dict[str, Any] = {
        "model_type": family,
        "vocab_size": len(VOCABULARY),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if family == "qwen3":
        raw["head_dim"] = 32
    return raw | changes


def random_weights(config: ModelConfig, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in expected_shapes(config).items():
        values = torch.randn(shape, generator=generator) * 0.1
        weights[name] = values + 1 if "norm" in name else values
    return weights


def write_folder(folder: Path, family: str = "llama", **changes: Any) -> dict[str, Tensor]:
    """A Hugging Face folder in bfloat16, without a tokenizer; returns its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = raw_config(family, **changes)
    weights = {n: w.to(torch.bfloat16) for n, w in random_weights(parse_config(raw)).items()}
    (folder / "config.json").write_text(json.dumps(raw))
    save_file(weights, folder / "model.safetensors")
    return weights


_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        _, _, layer, stem = stem.split(".", 3)
        return f"blk.{layer}.{_GGUF_NAMES[stem]}.{kind}"
    return f"{_GGUF_NAMES[stem]}.{kind}"


def permute(weight: Tensor, heads: int) -> Tensor:
    """As llama.cpp's converter does for the llama architecture."""
    rows = weight.shape[0]
    return weight.reshape(heads, 2, rows // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(
    path: Path,
    family: str = "llama",
    *,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    embedding: GGMLQuantizationType | None = None,
    metadata: Mapping[str, Any] | None = None,
    rope_divisors: np.ndarray[Any, Any] | None = None,
    tensors_per_file: int = 0,
    **changes: Any,
) -> dict[str, Tensor]:
    """A GGUF file with a SentencePiece vocabulary and a chat template; returns the weights under canonical names.

    ``kind``: of matrices, but for the embedding if ``embedding`` is given. ``metadata`` changes or (None) removes keys
    of the family's group, or of ``general.`` and the like where they say so. With ``tensors_per_file``, ``m.gguf``
    becomes ``m-00001-of-00002.gguf`` and so on.
    """
    config = parse_config(raw_config(family, **changes))
    weights = random_weights(config)
    writer = GGUFWriter(path, family, split_max_tensors=tensors_per_file)
    keys: dict[str, Any] = {
        "context_length": config.max_seq_len,
        "embedding_length": config.hidden_size,
        "block_count": config.num_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim,
        "rope.dimension_count": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": config.rope_theta,
    }
    add_keys(writer, family, keys | dict(metadata or {}))
    _add_vocabulary(writer)
    for name, weight in weights.items():
        if family == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            weight = permute(weight, config.num_heads if "q_proj" in name else config.num_kv_heads)
        quantised = kind if weight.ndim == 2 else GGMLQuantizationType.F32
        if name == "model.embed_tokens.weight" and embedding is not None:
            quantised = embedding
        data = quantize(weight.numpy(), quantised)
        writer.add_tensor(gguf_name(name), data, raw_dtype=quantised)
    if rope_divisors is not None:
        writer.add_tensor("rope_freqs.weight", rope_divisors.astype(np.float32))
    finish(writer)
    return weights


def add_keys(writer: GGUFWriter, group: str, keys: Mapping[str, Any]) -> None:
    """Each by the type of its value: whole numbers are uint32, others float32, and None is left out.

    A key belongs to ``group`` unless it says otherwise.
    """
    for key, value in keys.items():
        name = key if key.startswith(("general.", "tokenizer.", "split.", "other.")) else f"{group}.{key}"
        if isinstance(value, str):
            writer.add_string(name, value)
        elif isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, list):
            writer.add_array(name, value)
        elif value is not None:
            writer.add_uint32(name, value)


def add_tensors(writer: GGUFWriter, tensors: Mapping[str, Tensor | None], kind: str = "F32") -> None:
    """Those that are there; matrices whose rows are whole groups as ``kind``, others as float32."""
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        values = np.ascontiguousarray(tensor.float().numpy())
        if kind != "F32" and values.ndim > 1 and values.shape[-1] % 32 == 0:
            quantised = GGMLQuantizationType[kind]
            writer.add_tensor(name, quantize(values, quantised), raw_dtype=quantised)
        else:
            writer.add_tensor(name, values)


def finish(writer: GGUFWriter) -> None:
    """Write the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_vocabulary(writer: GGUFWriter) -> None:
    writer.add_tokenizer_model("llama")
    writer.add_token_list(VOCABULARY)
    writer.add_token_scores(SCORES)
    writer.add_token_types(TOKEN_TYPES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)


def write_llama2c(model: Path, vocabulary: Path, *, tied: bool = True) -> dict[str, Tensor]:
    """A llama2.c model and tokenizer of the same tiny shape; returns the weights under canonical names."""
    config = parse_config(raw_config(tie_word_embeddings=tied))
    weights = random_weights(config)
    layers = range(config.num_layers)
    with model.open("wb") as file:
        size = config.vocab_size if tied else -config.vocab_size
        dims = (config.hidden_size, config.intermediate_size, config.num_layers, config.num_heads, config.num_kv_heads)
        file.write(struct.pack("<7i", *dims, size, config.max_seq_len))
        file.write(weights["model.embed_tokens.weight"].numpy().tobytes())
        for name, heads in (
            ("input_layernorm", 0),
            ("self_attn.q_proj", config.num_heads),
            ("self_attn.k_proj", config.num_kv_heads),
            ("self_attn.v_proj", 0),
            ("self_attn.o_proj", 0),
            ("post_attention_layernorm", 0),
            ("mlp.gate_proj", 0),
            ("mlp.down_proj", 0),
            ("mlp.up_proj", 0),
        ):
            for i in layers:
                weight = weights[f"model.layers.{i}.{name}.weight"]
                file.write((permute(weight, heads) if heads else weight).numpy().tobytes())
        file.write(weights["model.norm.weight"].numpy().tobytes())
        file.write(bytes(4 * config.max_seq_len * config.head_dim))
        if not tied:
            file.write(weights["lm_head.weight"].numpy().tobytes())
    texts = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(bytes([b]) for b in range(256))]
    texts += [word.replace("\u2581", " ").encode() for word in WORDS]
    packed = b"".join(struct.pack("<fi", s, len(t)) + t for s, t in zip(SCORES, texts, strict=True))
    vocabulary.write_bytes(struct.pack("<i", max(map(len, texts))) + packed)
    return weights
