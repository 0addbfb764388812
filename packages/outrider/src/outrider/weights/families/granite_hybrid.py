"""Granite 4: Mamba-2 beside attention that mostly rotates nothing, with Granite's factors, and experts or none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from outrider.errors import ModelFormatError
from outrider.models.config import Experts, ModelConfig, RecurrentLayers
from outrider.utils.json_files import shown
from outrider.weights.families.base import Family, Raw, flag, num_layers, words
from outrider.weights.families.granite import GRANITE
from outrider.weights.families.mamba import check_time_steps, checked_mamba, mamba_names
from outrider.weights.families.mixture import experts_of
from outrider.weights.values import positive_integer

__all__ = ["GRANITE_HYBRID"]

_RECURRENT, _ATTENTION = ("mamba", "linear_attention"), ("attention", "full_attention")
"""Kinds in ``layer_types``, of published files and as transformers 5 names them."""


def _kinds(raw: Raw) -> tuple[bool, ...]:
    """For each layer, whether it is recurrent."""
    layers, kinds = num_layers(raw), raw.get("layer_types")
    if kinds is None:
        kinds = raw.get("layers_block_type")
    known = _RECURRENT + _ATTENTION
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in known for kind in kinds):
        raise ModelFormatError(
            f"layer_types={shown(kinds)} does not name one of {', '.join(known)} for each of {layers} layers"
        )
    found = tuple(kind in _RECURRENT for kind in kinds)
    if all(found):
        raise ModelFormatError("layer_types names no layer with attention, which is not supported: use another model")
    return found


def _mamba(raw: Raw, layers: tuple[bool, ...]) -> RecurrentLayers:
    heads, inner = positive_integer(raw, "mamba_n_heads"), positive_integer(raw, "mamba_expand")
    inner *= positive_integer(raw, "hidden_size")
    size = inner // heads if raw["mamba_d_head"] == "auto" else positive_integer(raw, "mamba_d_head")
    if size * heads != inner:
        raise ModelFormatError(
            f"mamba_d_head={size} times mamba_n_heads={heads} is not mamba_expand times hidden_size: {inner}"
        )
    check_time_steps(raw)
    return checked_mamba(
        RecurrentLayers(
            layers=layers,
            key_heads=positive_integer(raw, "mamba_n_groups"),
            value_heads=heads,
            key_dim=positive_integer(raw, "mamba_d_state"),
            value_dim=size,
            convolution=positive_integer(raw, "mamba_d_conv"),
            kind="mamba2",
            convolution_bias=flag(raw, "mamba_conv_bias"),
            projection_bias=flag(raw, "mamba_proj_bias"),
        )
    )


def _experts(raw: Raw, shared: int) -> Experts | None:
    if raw["num_local_experts"] == 0:
        return None
    experts = experts_of(raw, "num_local_experts", "intermediate_size", True)
    return replace(experts, router="softmax_of_used", shared_size=shared, shared_gate=False)


def _read(raw: Raw) -> dict[str, Any]:
    layers, shared = _kinds(raw), positive_integer(raw, "shared_intermediate_size")
    experts = _experts(raw, shared)
    still = {"rope_layers": (False,) * len(layers), "rope_theta": GRANITE.theta, "rope_scaling": {}}
    return {
        **GRANITE.read({**raw, "mlp_bias": False}),
        "recurrent": _mamba(raw, layers) if any(layers) else None,
        "experts": experts,
        "intermediate_size": shared if experts is None else experts.size,
        **({} if raw["position_embedding_type"] == "rope" else still),
    }


def _write(config: ModelConfig) -> dict[str, Any]:
    recurrent, experts = config.recurrent, config.experts
    kinds = [_RECURRENT[1] if config.is_recurrent(layer) else _ATTENTION[1] for layer in range(config.num_layers)]
    made = {key: value for key, value in GRANITE.write(config).items() if key != "mlp_bias"} | {
        "layer_types": kinds,
        "position_embedding_type": None if config.rope_layers else "rope",
        "num_local_experts": 0 if experts is None else experts.count,
        "num_experts_per_tok": 0 if experts is None else experts.used,
        "shared_intermediate_size": config.intermediate_size if experts is None else experts.shared_size,
    }
    if recurrent is None:
        return made
    return made | {
        "mamba_n_heads": recurrent.value_heads,
        "mamba_n_groups": recurrent.key_heads,
        "mamba_d_state": recurrent.key_dim,
        "mamba_d_head": recurrent.value_dim,
        "mamba_d_conv": recurrent.convolution,
        "mamba_expand": recurrent.values // config.hidden_size,
        "mamba_conv_bias": recurrent.convolution_bias,
        "mamba_proj_bias": recurrent.projection_bias,
    }


_MLP = {
    "mlp.gate": "block_sparse_moe.router.layer",
    **{f"mlp.experts.*.{part}_proj": "block_sparse_moe.input_linear" for part in ("gate", "up")},
    "mlp.experts.*.down_proj": "block_sparse_moe.output_linear",
    **{
        f"{mlp}.{part}_proj": "shared_mlp.input_linear"
        for mlp in ("mlp", "mlp.shared_expert")
        for part in ("gate", "up")
    },
    **{f"{mlp}.down_proj": "shared_mlp.output_linear" for mlp in ("mlp", "mlp.shared_expert")},
}

GRANITE_HYBRID = Family(
    name="granitemoehybrid",
    architecture="GraniteMoeHybridForCausalLM",
    defaults={key: value for key, value in GRANITE.defaults.items() if key != "mlp_bias"}
    | {
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 1024,
        "position_embedding_type": None,
        "mamba_n_heads": 128,
        "mamba_n_groups": 1,
        "mamba_d_state": 256,
        "mamba_d_head": "auto",
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
        "time_step_limit": None,
    },
    read=_read,
    write=_write,
    keys=(GRANITE.keys - {"mlp_bias"})
    | words(
        "num_local_experts num_experts_per_tok shared_intermediate_size position_embedding_type mamba_n_heads "
        "mamba_n_groups mamba_d_state mamba_d_head mamba_d_conv mamba_expand mamba_conv_bias mamba_proj_bias "
        "mamba_chunk_size time_step_limit output_router_logits router_aux_loss_coef layers_block_type"
    ),
    windows="of its own",
    rename=mamba_names("mamba") | _MLP,
)
