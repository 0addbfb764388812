"""llama.cpp's keys and tensors of families that differ from Llama in little."""

from __future__ import annotations

import math
from typing import Any

from outrider.models.frequencies import grown_base
from outrider.weights.families import FAMILIES
from outrider.weights.gguf.header import GGUFHeader
from outrider.weights.gguf.names import GGUFFamily, shortest
from outrider.weights.gguf.rope import read_gguf_rope
from outrider.weights.gguf.windows import PATTERN, POST_NORMS, read_windows

__all__ = ["DENSE", "MISTRAL3"]

_EXAONE4_WITH_WINDOWS = 64
"""The number of blocks of the EXAONE 4 that has windows: llama.cpp knows it by this."""


def _seed_oss(arch: str, header: GGUFHeader) -> dict[str, Any]:
    return {"attention_bias": "blk.0.attn_q.bias" in header.tensors}


def _exaone4(arch: str, header: GGUFHeader) -> dict[str, Any]:
    if header.scalar(f"{arch}.block_count") == _EXAONE4_WITH_WINDOWS:
        return read_windows(arch, header, 4, 4096)
    return {"sliding_window": None}


def _hunyuan(arch: str, header: GGUFHeader) -> dict[str, Any]:
    get = header.scalar
    alpha, theta, heads = (
        get(f"{arch}.{key}", otherwise)
        for key, otherwise in (("rope.scaling.alpha", 0.0), ("rope.freq_base", 10000.0), ("attention.head_count", None))
    )
    head_dim = get(f"{arch}.attention.key_length") or (get(f"{arch}.embedding_length") // heads if heads else 0)
    return {"rope_theta": grown_base(theta, alpha, head_dim)} if alpha > 0 and head_dim > 2 else {}


def _mistral3(arch: str, header: GGUFHeader) -> dict[str, Any]:
    """YaRN with constants of the file's own. Without a temperature the model is a Mistral."""
    get = header.scalar
    rope = read_gguf_rope(arch, header, None, FAMILIES["mistral"])
    scaling = rope["rope_scaling"] or {"rope_type": "default"}
    if scaling["rope_type"] == "yarn":
        multiplier = get(f"{arch}.rope.scaling.yarn_log_multiplier", 0.0)
        grown = 0.1 * multiplier * math.log(max(scaling["factor"], 1.0)) + 1
        scaling["attention_factor"] = round(scaling["attention_factor"] / grown, 12)
        for name, otherwise in (("beta_fast", 32.0), ("beta_slow", 1.0)):
            scaling[name] = get(f"{arch}.rope.scaling.yarn_{name}", otherwise)
    own = {
        "llama_4_scaling_beta": shortest(get(f"{arch}.attention.temperature_scale", 0.0)),
        "original_max_position_embeddings": get(
            f"{arch}.rope.scaling.original_context_length", get(f"{arch}.context_length")
        ),
    }
    return {"rope_scaling": scaling | (own if own["llama_4_scaling_beta"] else {}), "sliding_window": None}


_MISTRAL3_KEYS = (
    *("attention.temperature_scale", "rope.scaling.yarn_log_multiplier", "rope.scaling.yarn_beta_fast"),
    "rope.scaling.yarn_beta_slow",
)

DENSE: dict[str, GGUFFamily] = {
    "seed_oss": GGUFFamily(
        family="seed_oss", read=_seed_oss, tensors={"post_attention_norm": "post_attention_layernorm"}
    ),
    "ernie4_5": GGUFFamily(family="ernie4_5", interleaved=True),
    "exaone4": GGUFFamily(
        family="exaone4",
        read=_exaone4,
        keys=(PATTERN, "rope.freq_base_swa"),
        tensors=POST_NORMS,
        reads_window=True,
    ),
    "hunyuan-dense": GGUFFamily(
        family="hunyuan_v1_dense",
        read=_hunyuan,
        keys=("rope.scaling.alpha", "expert_used_count"),  # of one expert, which is the MLP
        tensors={"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"},
    ),
    "mistral3": GGUFFamily(family="ministral3", interleaved=True, read=_mistral3, keys=_MISTRAL3_KEYS),
}
MISTRAL3 = GGUFFamily(family="mistral", interleaved=True, read=_mistral3, keys=_MISTRAL3_KEYS)
"""Files of the architecture ``mistral3`` without a temperature: Mistral Small 3.1 and 3.2."""
