"""Reads the metadata of a GGUF file into a ``ModelConfig``. An unsupported key that changes the output is refused.

llama.cpp reads ``ARCH.*``, ``tokenizer.*``, ``split.*`` and a few of ``general.*``. Other keys are notes of the tools
that wrote the file: no reader uses them, and they are ignored.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from outrider.errors import ModelFormatError
from outrider.models.config import ModelConfig
from outrider.utils.json_files import shown
from outrider.weights.families import FAMILIES
from outrider.weights.gguf.deepseek import family_of_deepseek2
from outrider.weights.gguf.dense import MISTRAL3
from outrider.weights.gguf.families import GGUF_FAMILIES, MIXTRAL, OLMO3
from outrider.weights.gguf.header import GGUFHeader
from outrider.weights.gguf.hybrid import NEXTN
from outrider.weights.gguf.keys import KNOWN, OFF, OWN_OFF
from outrider.weights.gguf.names import GGUFFamily, shortest
from outrider.weights.gguf.rope import ROPE_READ, read_gguf_rope
from outrider.weights.gguf.tokenizer import check_gguf_tokenizer
from outrider.weights.hf_config.config import parse_config

__all__ = ["kind_of_gguf", "num_draft_layers", "num_model_layers", "read_gguf_config"]

READ: tuple[str, ...] = (
    *("embedding_length", "feed_forward_length", "block_count", "context_length", "attention.head_count"),
    *("attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.sliding_window"),
    *("attention.layer_norm_rms_epsilon", *ROPE_READ),
)
"""Keys of ``ARCH.`` that become part of the configuration, or are compared with it."""


def read_gguf_config(path: Path, header: GGUFHeader) -> ModelConfig:
    """The configuration of a file. Raises ``ModelFormatError`` naming the unsupported or contradictory key."""
    try:
        return _read(path, header)
    except ModelFormatError as error:
        raise ModelFormatError(f"{path}: {error}") from None


def kind_of_gguf(header: GGUFHeader) -> GGUFFamily:
    """The family of a file. Raises ``ModelFormatError`` if it is not known."""
    arch = header.scalar("general.architecture")
    if arch == "llama" and header.scalar("llama.expert_count", 0) and "blk.0.ffn_gate_exps.weight" in header.tensors:
        return MIXTRAL
    if arch == "olmo2" and header.scalar("olmo2.attention.sliding_window", 0):
        return OLMO3
    if arch == "deepseek2":
        return family_of_deepseek2(header)
    if arch == "mistral3" and not header.scalar("mistral3.attention.temperature_scale", 0.0):
        return MISTRAL3
    if arch not in GGUF_FAMILIES:
        raise ModelFormatError(f"architecture {shown(arch)} is not supported: use one of {', '.join(GGUF_FAMILIES)}")
    return GGUF_FAMILIES[arch]


def _read(path: Path, header: GGUFHeader) -> ModelConfig:
    get = header.scalar
    arch, kind = get("general.architecture"), kind_of_gguf(header)
    check_gguf_tokenizer(header)
    _check_keys(header, arch, kind)
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFormatError("tensor token_embd.weight is missing: download the file again")

    def one(key: str, otherwise: Any = None) -> Any:
        return None if key in kind.by_layer else get(f"{arch}.{key}", otherwise)

    heads, width = get(f"{arch}.attention.head_count"), get(f"{arch}.embedding_length")
    raw = {
        "model_type": kind.family,
        "vocab_size": embedding.shape[0],
        "hidden_size": width,
        "intermediate_size": one("feed_forward_length"),
        "num_hidden_layers": num_model_layers(header),
        "num_attention_heads": heads,
        "num_key_value_heads": one("attention.head_count_kv", heads),
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
    rope = read_gguf_rope(arch, header, turned, FAMILIES[kind.family])
    config = _as_stored(parse_config(raw | {"head_dim": head_dim} | rope | kind.read(arch, header)), header, kind)
    head_dim = config.head_dim if config.gemma4 is None else config.gemma4.full_head_dim
    whole = {"rope.dimension_count": config.rotary_dim or head_dim, "attention.value_length": head_dim}
    if config.latent is not None:  # the lengths of keys and values have been read
        whole = {"rope.dimension_count": config.rope_dim}
    for key, wanted in whole.items():
        value = get(f"{arch}.{key}", wanted)
        if value != wanted:
            raise ModelFormatError(
                f"{arch}.{key}={shown(value)} is not supported: a head has {head_dim} dimensions, all rotated"
            )
    return config if kind.reads_window else _within_window(config, get(f"{arch}.attention.sliding_window"))


def num_model_layers(header: GGUFHeader) -> Any:
    """The number of blocks that are the model's layers; the others, behind them, are its draft head."""
    arch, kind = header.scalar("general.architecture"), kind_of_gguf(header)
    blocks, heads = header.scalar(f"{arch}.block_count"), num_draft_layers(header)
    if NEXTN in kind.keys and isinstance(blocks, int) and blocks <= heads:
        raise ModelFormatError(f"{arch}.block_count={blocks} leaves no layer beside {NEXTN}={heads}")
    return blocks - heads if isinstance(blocks, int) else blocks


def num_draft_layers(header: GGUFHeader) -> int:
    """The number of blocks that are the draft head of the model; 0 for families without one."""
    arch = header.scalar("general.architecture")
    if NEXTN not in kind_of_gguf(header).keys:
        return 0
    heads = header.scalar(f"{arch}.{NEXTN}", 0)
    if not isinstance(heads, int) or isinstance(heads, bool) or heads < 0:
        raise ModelFormatError(f"{arch}.{NEXTN}={shown(heads)} is no number of blocks: download the file again")
    return heads


def _as_stored(config: ModelConfig, header: GGUFHeader, kind: GGUFFamily) -> ModelConfig:
    """``config`` with the order of value heads and the draft head that the file has, and norms as in llama.cpp."""
    recurrent, latent = config.recurrent, config.latent
    if recurrent is not None and kind.tiled and recurrent.value_heads > recurrent.key_heads:
        config = replace(config, recurrent=replace(recurrent, tiled=True))
    if latent is not None:
        config = replace(config, latent=replace(latent, eps=config.rms_norm_eps))
    return replace(config, mtp_layers=int(num_draft_layers(header) == 1))


def _check_keys(header: GGUFHeader, arch: str, kind: GGUFFamily) -> None:
    """Refuse unsupported values of keys that llama.cpp reads for this architecture, and keys that it does not know.

    llama.cpp reads many keys for some architectures only; for the others they change nothing, and pass.
    """
    passing, off = {*READ, kind.eps, *kind.keys}, {**OFF, **OWN_OFF.get(kind.family, {})}
    for key in header.metadata:
        space, _, name = key.partition(".")
        if space != arch or name in passing:
            continue
        if name in off and header.scalar(key) not in off[name]:
            raise ModelFormatError(f"{key}={shown(header.scalar(key))} is not supported: use a model without it")
        if name not in KNOWN:
            raise ModelFormatError(
                f"{shown(key)}: {shown(header.metadata[key])} is not known here and may change what the model "
                "computes: if it does not, remove it"
            )


def _within_window(config: ModelConfig, window: object) -> ModelConfig:
    """``config`` with a context no longer than ``window``.

    In these architectures llama.cpp attends to the whole context, and the model's authors to a window. Within one
    window both are the same.
    """
    if not isinstance(window, int) or isinstance(window, bool) or not 0 < window < config.max_seq_len:
        return config
    return replace(config, max_seq_len=window)
