"""DeepSeek V2 and V3 and what shares their layers: attention on latents, and a mixture of experts behind dense layers.

Kimi K2 and DeepSeek R1 have the architecture of DeepSeek V3; GLM-4.7-Flash is ``glm4_moe_lite``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from outrider.errors import ModelFormatError
from outrider.models.config import Experts, ModelConfig
from outrider.utils.json_files import shown
from outrider.weights.families.base import COMMON, SILU, Family, Raw, flag, num_layers, words
from outrider.weights.families.latent import (
    LATENT_DEFAULTS,
    LATENT_KEYS,
    LATENT_NAMES,
    read_attention,
    write_attention,
)
from outrider.weights.families.mixture import count_key
from outrider.weights.values import positive, positive_integer

__all__ = [
    "DEEPSEEK_V2",
    "DEEPSEEK_V3",
    "EXPERT_KEYS",
    "EXPERT_NAMES",
    "GLM4_MOE_LITE",
    "layers_behind_dense",
    "num_experts",
    "read_experts",
    "read_groups",
    "write_experts",
]


def layers_behind_dense(raw: Raw) -> tuple[bool, ...]:
    """For each layer, whether it has experts: all behind the first dense ones."""
    dense = raw["first_k_dense_replace"]
    if not isinstance(dense, int) or isinstance(dense, bool) or dense < 0:
        raise ModelFormatError(f"first_k_dense_replace={shown(dense)} is no number of layers")
    return tuple(layer >= dense for layer in range(num_layers(raw)))


def _by_kind(raw: Raw) -> tuple[bool, ...]:
    """The same by ``mlp_layer_types``; where it is null, all but the first."""
    layers, kinds = num_layers(raw), raw["mlp_layer_types"]
    if kinds is None:
        return tuple(layer > 0 for layer in range(layers))
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in ("dense", "sparse") for kind in kinds):
        raise ModelFormatError(f"mlp_layer_types={shown(kinds)} does not name the kind of each of {layers} layers")
    return tuple(kind == "sparse" for kind in kinds)


def read_groups(raw: Raw, count: int) -> dict[str, int]:
    """Groups of experts of which the best alone are chosen from; none where all of them are."""
    groups, used = (1 if raw[key] is None else positive_integer(raw, key) for key in ("n_group", "topk_group"))
    if count % groups or used > groups:
        raise ModelFormatError(f"n_group={groups} and topk_group={used} do not share out {count} experts")
    return {} if used == groups else {"groups": groups, "groups_used": used}


def num_experts(raw: Raw, also: str = "num_local_experts") -> int:
    """``n_routed_experts``, or by its other name in transformers, ``also``, which goes first."""
    return positive_integer(raw, count_key(raw, also, "n_routed_experts"))


def read_experts(raw: Raw, sparse: tuple[bool, ...], also: str = "num_local_experts", **router: Any) -> dict[str, Any]:
    """The mixture of experts of the layers that have it, ``sparse``; ``router``: what the family's does."""
    if not any(sparse):
        return {"experts": None}
    count, used = num_experts(raw, also), positive_integer(raw, "num_experts_per_tok")
    if used > count:
        raise ModelFormatError(f"num_experts_per_tok={used} is more than n_routed_experts={count}")
    size, shared = positive_integer(raw, "moe_intermediate_size"), raw["n_shared_experts"] or 0
    made = Experts(
        count=count,
        used=used,
        size=size,
        layers=() if all(sparse) else sparse,
        shared_size=size * positive_integer(raw, "n_shared_experts") if shared else 0,
        shared_gate=False,
        scale=positive(raw, "routed_scaling_factor"),
        **router,
    )
    return {"experts": made} | ({"intermediate_size": size} if all(sparse) and raw["intermediate_size"] is None else {})


def write_experts(config: ModelConfig) -> dict[str, Any]:
    experts, sparse = config.experts, [config.is_sparse(layer) for layer in range(config.num_layers)]
    dense = sparse.index(True) if any(sparse) else config.num_layers
    own: dict[str, Any] = {"first_k_dense_replace": dense}
    if experts is not None:
        own |= {
            "n_routed_experts": experts.count,
            "num_experts_per_tok": experts.used,
            "moe_intermediate_size": experts.size,
            "n_shared_experts": experts.shared_size // experts.size or None,
            "routed_scaling_factor": experts.scale,
            "n_group": experts.groups or 1,
            "topk_group": experts.groups_used or 1,
        }
    return write_attention(config) | own


def _read_v2(raw: Raw) -> dict[str, Any]:
    """Groups count only with one of the methods; weights are never normalised."""
    limited, sparse = raw["topk_method"] == "group_limited_greedy", layers_behind_dense(raw)
    chosen: dict[str, Any] = {"normalised": False, "best_of_group": 1}
    if limited and any(sparse):
        chosen |= read_groups(raw, num_experts(raw, "num_experts"))
    return read_attention(raw) | read_experts(raw, sparse, "num_experts", **chosen)


def _write_v2(config: ModelConfig) -> dict[str, Any]:
    limited = config.experts is not None and config.experts.groups > 0
    return write_experts(config) | {"topk_method": "group_limited_greedy" if limited else "greedy"}


def _read_v3(raw: Raw, sparse: Callable[[Raw], tuple[bool, ...]] = layers_behind_dense) -> dict[str, Any]:
    chosen: dict[str, Any] = {"router": "sigmoid", "score_bias": True, "sum_added": 1e-20}
    if any(sparse(raw)):
        chosen |= read_groups(raw, num_experts(raw))
    return read_attention(raw) | read_experts(raw, sparse(raw), normalised=flag(raw, "norm_topk_prob"), **chosen)


def _write_v3(config: ModelConfig) -> dict[str, Any]:
    return write_experts(config) | {"norm_topk_prob": config.experts is None or config.experts.normalised}


def _write_lite(config: ModelConfig) -> dict[str, Any]:
    kinds = ["sparse" if config.is_sparse(layer) else "dense" for layer in range(config.num_layers)]
    return {key: value for key, value in _write_v3(config).items() if key != "first_k_dense_replace"} | {
        "mlp_layer_types": kinds
    }


_DEFAULTS = {
    **COMMON,
    **LATENT_DEFAULTS,
    "head_dim": 64,
    "routed_scaling_factor": 1.0,
}
EXPERT_KEYS = LATENT_KEYS | words(
    "n_routed_experts n_shared_experts moe_intermediate_size num_experts_per_tok routed_scaling_factor n_group "
    "topk_group num_nextn_predict_layers num_mtp_layers output_router_logits num_local_experts num_experts"
)
EXPERT_NAMES = {
    **LATENT_NAMES,
    **{f"mlp.shared_expert.{part}_proj": f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")},
}

DEEPSEEK_V2 = Family(
    name="deepseek_v2",
    architecture="DeepseekV2ForCausalLM",
    defaults=_DEFAULTS
    | {
        "vocab_size": 102400,
        "intermediate_size": 11008,
        "hidden_size": 4096,
        "max_position_embeddings": 2048,
        "first_k_dense_replace": 0,
        "n_group": None,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "topk_group": None,
        "topk_method": "greedy",
        "num_experts_per_tok": None,
        "moe_intermediate_size": 1407,
    },
    read=_read_v2,
    write=_write_v2,
    keys=EXPERT_KEYS | words("first_k_dense_replace topk_method norm_topk_prob"),
    only={"hidden_act": SILU, "mlp_bias": (False,), "topk_method": ("greedy", "group_limited_greedy")},
    rename=EXPERT_NAMES,
    interleaved=True,
    has_draft_head=True,
    may_stack_experts=True,
)
DEEPSEEK_V3 = Family(
    name="deepseek_v3",
    architecture="DeepseekV3ForCausalLM",
    defaults=_DEFAULTS
    | {
        "vocab_size": 129280,
        "intermediate_size": 18432,
        "hidden_size": 7168,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "max_position_embeddings": 4096,
        "first_k_dense_replace": 3,
        "n_group": 8,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "topk_group": 4,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "routed_scaling_factor": 2.5,
    },
    read=_read_v3,
    write=_write_v3,
    keys=EXPERT_KEYS | words("first_k_dense_replace norm_topk_prob"),
    only={"hidden_act": SILU, "rope_interleave": (True,)},
    rename=EXPERT_NAMES,
    interleaved=True,
    has_draft_head=True,
    may_stack_experts=True,
)
GLM4_MOE_LITE = Family(
    name="glm4_moe_lite",
    architecture="Glm4MoeLiteForCausalLM",
    defaults=_DEFAULTS
    | {
        "vocab_size": 154880,
        "intermediate_size": 10240,
        "hidden_size": 2048,
        "num_hidden_layers": 47,
        "num_attention_heads": 20,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 202752,
        "q_lora_rank": 768,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
        "mlp_layer_types": None,
        "n_group": 1,
        "n_routed_experts": 64,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "topk_group": 1,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1536,
        "routed_scaling_factor": 1.8,
    },
    read=lambda raw: _read_v3(raw, _by_kind),
    write=_write_lite,
    keys=EXPERT_KEYS | words("mlp_layer_types norm_topk_prob first_k_dense_replace"),
    only={"hidden_act": SILU, "rope_interleave": (True,)},
    rename=EXPERT_NAMES,
    interleaved=True,
    has_draft_head=True,
    may_stack_experts=True,
)
