"""Names and shapes of the tensors that Gemma 4's checkpoints hold beside those of other models."""

from __future__ import annotations

from outrider.models.config import ModelConfig
from outrider.models.native_gemma4 import LAYER_EMBEDDING, LAYER_PROJECTION, missing_projections

__all__ = ["layer_embedding_shapes", "layer_shapes"]

Shapes = dict[str, tuple[int, ...]]


def layer_embedding_shapes(config: ModelConfig) -> Shapes:
    """Embeddings of each layer, and their projection."""
    own = config.gemma4
    if own is None or not own.layer_inputs:
        return {}
    numbers = config.num_layers * own.layer_inputs
    return {
        LAYER_EMBEDDING: (own.layer_vocab, numbers),
        f"{LAYER_PROJECTION}.weight": (numbers, config.hidden_size),
        "model.per_layer_projection_norm.weight": (own.layer_inputs,),
    }


def layer_shapes(config: ModelConfig, layer: int) -> Shapes:
    """A layer's own; those of other models that it does not have are empty."""
    own, d = config.gemma4, config.hidden_size
    if own is None:
        return {}
    shapes: Shapes = {"layer_scalar": (1,)}
    for x in missing_projections(config, layer):
        shapes |= {f"self_attn.{x}_proj.weight": (), f"self_attn.{x}_proj.bias": (), f"self_attn.{x}_norm.weight": ()}
    if own.layer_inputs:
        shapes["per_layer_input_gate.weight"] = (own.layer_inputs, d)
        shapes["per_layer_projection.weight"] = (d, own.layer_inputs)
        shapes["post_per_layer_input_norm.weight"] = (d,)
    if config.experts is not None and config.is_sparse(layer):
        shapes |= {"mlp.router_scale": (d,), "mlp.expert_scale": (config.experts.count,)}
        shapes |= {f"mlp.{name}.weight": (d,) for name in ("mlp_output_norm", "expert_norm", "expert_output_norm")}
    return shapes
