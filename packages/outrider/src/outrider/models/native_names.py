"""Names of a model's matrices, and the sizes of its MLPs, for the native library."""

from __future__ import annotations

from collections.abc import Iterator

from outrider.models.config import ModelConfig
from outrider.models.native_gemma4 import LAYER_PROJECTION, missing_projections
from outrider.models.native_gemma4 import layer_matrices as input_matrices
from outrider.models.native_latent import latent_matrices
from outrider.models.native_recurrent import recurrent_matrices

__all__ = ["NEVER_ROUNDED", "ROUTER", "layer_matrices", "matrix_names", "router_names", "widest_mlp"]

NEVER_ROUNDED = (".linear_attn.in_proj_a", ".linear_attn.in_proj_b")
"""Ends of the names of matrices whose floats are never rounded: they have a row for each head, and set its decay."""
ROUTER = ".mlp.gate"
"""End of the name of a router, whose floats are rounded only if a type is asked for: they choose between experts."""


def matrix_names(config: ModelConfig) -> Iterator[str]:
    """The matrices of all layers, in the order in which a forward pass reads them; routers are not among them."""
    if config.gemma4 is not None and config.gemma4.layer_inputs:
        yield LAYER_PROJECTION
    for i in range(config.num_layers):
        missing = missing_projections(config, i)
        absent = tuple(f".self_attn.{x}_proj" for x in missing)
        for name in layer_matrices(config, f"model.layers.{i}.", config.is_recurrent(i), config.is_sparse(i)):
            of_mlp = ".mlp." in name
            if not name.endswith(absent) and (config.has_mlp(i) if of_mlp else config.has_mixer(i)):
                yield name


def layer_matrices(config: ModelConfig, name: str, recurrent: bool = False, sparse: bool = False) -> Iterator[str]:
    """The matrices of a layer whose weights' names begin with ``name``, but its router."""
    attention = [f"{x}_proj" for x in "qkvo"] if config.latent is None else latent_matrices(config.latent)
    mixer = [f"self_attn.{x}" for x in attention]
    if recurrent and config.recurrent is not None:
        mixer = [f"linear_attn.{x}" for x in recurrent_matrices(config.recurrent)]
    yield from (name + matrix for matrix in mixer)
    parts = ("gate_proj", "up_proj", "down_proj") if config.gated else ("up_proj", "down_proj")
    mlps = ["mlp"]
    if config.experts is not None and sparse:
        mlps = ["mlp"] if config.experts.beside else []
        mlps += [f"mlp.experts.{e}" for e in range(config.experts.count)]
        mlps += ["mlp.shared_expert"] if config.experts.shared_size else []
    yield from (f"{name}{mlp}.{part}" for mlp in mlps for part in parts)
    yield from input_matrices(config, name)


def widest_mlp(config: ModelConfig) -> int:
    """The largest intermediate size of a layer's MLP, or of an expert."""
    experts, shared = config.experts, 0 if config.gemma4 is None else config.gemma4.sharing_size
    return max(config.intermediate_size, shared, *((experts.size, experts.shared_size) if experts else (0,)))


def router_names(config: ModelConfig) -> Iterator[str]:
    """The matrices that choose a layer's experts, of which every process has all outputs."""
    return (f"model.layers.{i}{ROUTER}" for i in range(config.num_layers) if config.is_sparse(i))
