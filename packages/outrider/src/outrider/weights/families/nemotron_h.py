"""Nemotron-H, Nemotron Nano 2 and Nemotron 3: layers that are Mamba-2, attention, an MLP or experts alone.

In whole prompts transformers 5 takes no step in time shorter than ``time_step_min``, and with single tokens it does.
Here and in llama.cpp no step is limited, so that a token's numbers do not depend on how it came.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from outrider.errors import ModelFormatError
from outrider.models.config import Alone, Experts, ModelConfig, RecurrentLayers
from outrider.utils.json_files import shown
from outrider.weights.families.base import COMMON, Family, Raw, flag, words
from outrider.weights.families.mamba import checked_mamba, mamba_names
from outrider.weights.families.mixture import count_key, experts_of
from outrider.weights.families.sigmoid import router_of
from outrider.weights.values import positive_integer

__all__ = ["ATTENTION", "EXPERTS", "MAMBA", "MLP", "NEMOTRON_H"]

MAMBA, ATTENTION, MLP, EXPERTS = "linear_attention", "full_attention", "mlp", "moe"
"""Kinds in ``layers_block_type``."""
_OLDER = {"mamba": MAMBA, "attention": ATTENTION}
_LETTERS = {"M": MAMBA, "*": ATTENTION, "-": MLP, "E": EXPERTS}
_OTHER_NAMES = {
    "n_groups": "mamba_n_groups",
    "conv_kernel": "mamba_d_conv",
    "use_conv_bias": "mamba_conv_bias",
}
"""Other names of keys, which go first."""
_MOST_LAYERS = 10_000


def _kinds(raw: Raw) -> list[str]:
    """The kind of each layer, of a list or of a word of a letter each."""
    said = next((raw[key] for key in ("layer_types", "layers_block_type") if raw.get(key) is not None), None)
    pattern = raw.get("hybrid_override_pattern")
    if said is None and isinstance(pattern, str):
        said = [_LETTERS.get(letter, letter) for letter in pattern]
    if said is None:
        said = [MAMBA, EXPERTS, ATTENTION, MLP]
    kinds = [_OLDER.get(kind, kind) for kind in said if isinstance(kind, str)] if isinstance(said, list) else []
    if not 0 < len(kinds) <= _MOST_LAYERS or len(kinds) != len(said) or not set(kinds) <= set(_LETTERS.values()):
        raise ModelFormatError(
            f"layers_block_type={shown(said)} does not name one of {', '.join(_LETTERS.values())} for each layer"
        )
    if ATTENTION not in kinds:
        raise ModelFormatError("layers_block_type names no attention, which is not supported: use another model")
    return kinds


def _mamba(raw: Raw, layers: tuple[bool, ...]) -> RecurrentLayers:
    return checked_mamba(
        RecurrentLayers(
            layers=layers,
            key_heads=positive_integer(raw, "n_groups"),
            value_heads=positive_integer(raw, "mamba_num_heads"),
            key_dim=positive_integer(raw, "ssm_state_size"),
            value_dim=positive_integer(raw, "mamba_head_dim"),
            convolution=positive_integer(raw, "conv_kernel"),
            kind="mamba2",
            convolution_bias=flag(raw, "use_conv_bias"),
            projection_bias=flag(raw, "use_bias"),
        )
    )


def _experts(raw: Raw, layers: tuple[bool, ...]) -> Experts:
    if raw["mlp_bias"]:
        raise ModelFormatError("mlp_bias=true beside experts, which have no biases, is not supported")
    count = count_key(raw, "num_local_experts", "n_routed_experts")
    plain = experts_of(raw, count, "moe_intermediate_size", flag(raw, "norm_topk_prob"), layers)
    return replace(router_of(raw, plain), shared_size=positive_integer(raw, "moe_shared_expert_intermediate_size"))


def _read(given: Raw) -> dict[str, Any]:
    raw = {**given, **{key: given[other] for key, other in _OTHER_NAMES.items() if other in given}}
    kinds = _kinds(raw)
    mamba, sparse = (tuple(kind == wanted for kind in kinds) for wanted in (MAMBA, EXPERTS))
    alone: tuple[Alone, ...] = tuple("mlp" if kind in (MLP, EXPERTS) else "mixer" for kind in kinds)
    experts = _experts(raw, sparse) if any(sparse) else None
    return {
        "num_layers": len(kinds),
        "alone": alone,
        "recurrent": _mamba(raw, mamba) if any(mamba) else None,
        "experts": experts,
        "intermediate_size": experts.size
        if experts is not None and MLP not in kinds
        else positive_integer(raw, "intermediate_size"),
        "mlp_bias": flag(raw, "mlp_bias"),
        "gated": False,
        "activation": "relu_squared",
        "tie_embeddings": False,  # the LM head is in the file, whatever tie_word_embeddings says
        "rope_layers": (False,) * len(kinds),
        "rope_theta": NEMOTRON_H.theta,
        "rope_scaling": {},
    }


def _kind(config: ModelConfig, layer: int) -> str:
    if config.has_mixer(layer):
        return MAMBA if config.is_recurrent(layer) else ATTENTION
    return EXPERTS if config.is_sparse(layer) else MLP


def _write(config: ModelConfig) -> dict[str, Any]:
    recurrent, experts = config.recurrent, config.experts
    made: dict[str, Any] = {
        "layers_block_type": [_kind(config, layer) for layer in range(config.num_layers)],
        "layer_norm_epsilon": config.rms_norm_eps,
        "mlp_bias": config.mlp_bias,
    }
    if recurrent is not None:
        made |= {
            "n_groups": recurrent.key_heads,
            "mamba_num_heads": recurrent.value_heads,
            "ssm_state_size": recurrent.key_dim,
            "mamba_head_dim": recurrent.value_dim,
            "conv_kernel": recurrent.convolution,
            "use_conv_bias": recurrent.convolution_bias,
            "use_bias": recurrent.projection_bias,
        }
    if experts is not None:
        made |= {
            "n_routed_experts": experts.count,
            "num_experts_per_tok": experts.used,
            "moe_intermediate_size": experts.size,
            "moe_shared_expert_intermediate_size": experts.shared_size,
            "norm_topk_prob": experts.normalised,
            "routed_scaling_factor": experts.scale,
            "n_group": max(experts.groups, 1),
            "topk_group": max(experts.groups_used, 1),
        }
    return made


NEMOTRON_H = Family(
    name="nemotron_h",
    architecture="NemotronHForCausalLM",
    defaults={key: value for key, value in COMMON.items() if key not in ("hidden_act", "rms_norm_eps")}
    | {
        "vocab_size": 131072,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 21504,
        "max_position_embeddings": 4096,
        "layer_norm_epsilon": 1e-5,
        "mlp_bias": False,
        "use_bias": False,
        "use_conv_bias": True,
        "ssm_state_size": 128,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "n_groups": 8,
        "conv_kernel": 4,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 7688,
        "moe_shared_expert_intermediate_size": 7688,
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
    },
    read=_read,
    write=_write,
    keys=words(
        "layers_block_type hybrid_override_pattern layer_norm_epsilon mlp_bias use_bias use_conv_bias ssm_state_size "
        "mamba_num_heads mamba_head_dim n_groups conv_kernel time_step_limit n_routed_experts num_local_experts "
        "num_experts_per_tok moe_intermediate_size moe_shared_expert_intermediate_size routed_scaling_factor n_group "
        "topk_group norm_topk_prob mamba_n_groups mamba_d_conv mamba_conv_bias mamba_dt_limit time_step_min "
        "time_step_max time_step_floor mamba_dt_min mamba_dt_max mamba_dt_init_floor chunk_size mamba_chunk_size "
        "expand mamba_expand mamba_proj_bias mamba_ssm_cache_dtype moe_shared_expert_overlap mtp_layers_block_type "
        "mtp_hybrid_override_pattern n_shared_experts num_logits_to_keep num_nextn_predict_layers "
        "output_router_logits rescale_prenorm_residual residual_in_fp32 use_mamba_kernels"
    ),
    only={"mlp_hidden_act": ("relu2",), "mamba_hidden_act": ("silu", "swish"), "moe_latent_size": (None,)},
    eps="layer_norm_epsilon",
    windows="of its own",
    rename=mamba_names("mixer")
    | {
        "input_layernorm": "norm",
        "post_attention_layernorm": "norm",
        **{f"self_attn.{x}_proj": f"mixer.{x}_proj" for x in "qkvo"},
        "mlp.gate.e_score_correction_bias": "mixer.gate.e_score_correction_bias",
        "mlp.gate": "mixer.gate",
        **{f"mlp.experts.*.{x}_proj": f"mixer.experts.*.{x}_proj" for x in ("up", "down")},
        **{f"mlp.shared_expert.{x}_proj": f"mixer.shared_experts.{x}_proj" for x in ("up", "down")},
        **{f"mlp.{x}_proj": f"mixer.{x}_proj" for x in ("up", "down")},
    },
    rename_top={"model.embed_tokens": "model.embeddings", "model.norm": "model.norm_f"},
    prefix="backbone",
)
