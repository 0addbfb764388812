"""llama.cpp's names of architectures, and the keys and tensors of each beyond Llama's."""

from __future__ import annotations

from typing import Any

from outrider.weights.gguf.deepseek import DEEPSEEK2, MISTRAL4
from outrider.weights.gguf.dense import DENSE
from outrider.weights.gguf.gemma4 import GEMMA4
from outrider.weights.gguf.gpt_oss import GPT_OSS
from outrider.weights.gguf.granite_hybrid import GRANITE_HYBRID
from outrider.weights.gguf.header import GGUFHeader
from outrider.weights.gguf.hybrid import HYBRIDS
from outrider.weights.gguf.lfm2 import LFM2, LFM2_MOE
from outrider.weights.gguf.llama4 import LLAMA4
from outrider.weights.gguf.names import GGUFFamily, shortest
from outrider.weights.gguf.nemotron_h import NEMOTRON
from outrider.weights.gguf.routed import ROUTED
from outrider.weights.gguf.windows import PATTERN, POST_NORMS, read_windows

__all__ = ["GGUF_FAMILIES", "MIXTRAL", "OLMO3"]


def _granite(arch: str, header: GGUFHeader) -> dict[str, Any]:
    names = {
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "attention_multiplier": "attention.scale",
        "logits_scaling": "logit_scale",
    }
    return {key: shortest(header.scalar(f"{arch}.{name}", 1.0)) for key, name in names.items()}


def _starcoder2(arch: str, header: GGUFHeader) -> dict[str, Any]:
    biased = "blk.0.attn_q.bias" in header.tensors
    return {"norm_epsilon": shortest(header.scalar(f"{arch}.attention.layer_norm_epsilon")), "use_bias": biased}


def _biased_qkv(arch: str, header: GGUFHeader) -> dict[str, Any]:
    return {"attention_bias": "blk.0.attn_q.bias" in header.tensors}


def _mixtral(arch: str, header: GGUFHeader) -> dict[str, Any]:
    return {
        "num_local_experts": header.scalar(f"{arch}.expert_count"),
        "num_experts_per_tok": header.scalar(f"{arch}.expert_used_count"),
    }


def _qwen3moe(arch: str, header: GGUFHeader) -> dict[str, Any]:
    """In this architecture llama.cpp normalises the weights of the experts in use to the sum 1."""
    used, whole = (header.scalar(f"{arch}.{key}") for key in ("expert_used_count", "feed_forward_length"))
    size = whole // used if isinstance(used, int) and used and isinstance(whole, int) else None
    return {
        "num_experts": header.scalar(f"{arch}.expert_count"),
        "num_experts_per_tok": used,
        "moe_intermediate_size": header.scalar(f"{arch}.expert_feed_forward_length") or size,
        "norm_topk_prob": True,
    }


def _gemma(arch: str, header: GGUFHeader, largest: int) -> dict[str, Any]:
    """The scale of attention scores: the head dimension, or in the largest model the hidden size for each head."""
    get = header.scalar
    scale = get(f"{arch}.attention.key_length", 256)
    if get(f"{arch}.block_count") == largest:
        scale = get(f"{arch}.embedding_length") // get(f"{arch}.attention.head_count")
    return {"query_pre_attn_scalar": scale}


def _gemma2(arch: str, header: GGUFHeader) -> dict[str, Any]:
    caps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    own = {k: shortest(header.scalar(f"{arch}.{k}", cap)) for k, cap in caps.items()}
    return _gemma(arch, header, 46) | own | read_windows(arch, header, 2, 4096)


def _gemma3(arch: str, header: GGUFHeader) -> dict[str, Any]:
    cap = shortest(header.scalar(f"{arch}.final_logit_softcapping")) or None
    return _gemma(arch, header, 62) | {"final_logit_softcapping": cap} | read_windows(arch, header, 6)


_GEMMA = POST_NORMS | {"ffn_norm": "pre_feedforward_layernorm"}
_EXPERTS = ("expert_count", "expert_used_count")

GGUF_FAMILIES: dict[str, GGUFFamily] = {
    "llama": GGUFFamily(family="llama", interleaved=True),  # also the architecture of Mistral and Mixtral files
    "qwen2": GGUFFamily(family="qwen2"),
    "qwen3": GGUFFamily(family="qwen3"),
    "phi3": GGUFFamily(family="phi3", tensors={"ffn_up": "mlp.gate_up_proj"}, partial=True),
    "granite": GGUFFamily(
        family="granite",
        interleaved=True,
        read=_granite,
        keys=("embedding_scale", "residual_scale", "attention.scale", "logit_scale"),
    ),
    "smollm3": GGUFFamily(family="smollm3", interleaved=True),
    "olmo2": GGUFFamily(family="olmo2", tensors=POST_NORMS),
    "starcoder2": GGUFFamily(
        family="starcoder2",
        read=_starcoder2,
        tensors={"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
        eps="attention.layer_norm_epsilon",
    ),
    "glm4": GGUFFamily(
        family="glm4",
        interleaved=True,
        read=_biased_qkv,
        tensors={
            "ffn_up": "mlp.gate_up_proj",
            "post_attention_norm": "post_self_attn_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
        },
        partial=True,
    ),
    "gemma": GGUFFamily(family="gemma"),
    "gemma2": GGUFFamily(
        family="gemma2",
        read=_gemma2,
        keys=("attn_logit_softcapping", "final_logit_softcapping", PATTERN),
        tensors=_GEMMA,
        reads_window=True,
    ),
    "gemma3": GGUFFamily(
        family="gemma3_text",
        read=_gemma3,
        keys=("final_logit_softcapping", PATTERN, "rope.freq_base_swa"),
        tensors=_GEMMA,
        reads_window=True,
    ),
    "gemma4": GEMMA4,
    "qwen3moe": GGUFFamily(family="qwen3_moe", read=_qwen3moe, keys=(*_EXPERTS, "expert_feed_forward_length")),
    **DENSE,
    **ROUTED,
    "gpt-oss": GPT_OSS,
    **HYBRIDS,
    "deepseek2": DEEPSEEK2["v2"],  # or another: see ``family_of_deepseek2``
    "mistral4": MISTRAL4,
    "lfm2": LFM2,
    "lfm2moe": LFM2_MOE,
    "granitehybrid": GRANITE_HYBRID,
    **NEMOTRON,
    "llama4": LLAMA4,
}
MIXTRAL = GGUFFamily(family="mixtral", interleaved=True, read=_mixtral, keys=_EXPERTS)
"""Files of the architecture ``llama`` that have experts."""
OLMO3 = GGUFFamily(
    family="olmo3",
    read=lambda arch, header: read_windows(arch, header, 4),
    keys=(PATTERN, "rope.freq_base_swa"),
    tensors=POST_NORMS,
    reads_window=True,
)
"""Files of the architecture ``olmo2`` that have windows."""
