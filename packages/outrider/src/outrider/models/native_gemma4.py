"""Parts of Gemma 4's layers for the native library."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.models.config import ModelConfig
from outrider.models.native_stored import as_stored
from outrider.native.model_structs import BesideStruct, LayerInputStruct
from outrider.native.stored import StoredTensor
from outrider.native.weights import NativeWeight, StoredRows
from outrider.verify.arrays import Floats

__all__ = [
    "LAYER_EMBEDDING",
    "LAYER_PROJECTION",
    "LayerRows",
    "beside_fields",
    "layer_fields",
    "layer_matrices",
    "missing_projections",
    "model_fields",
]

LAYER_EMBEDDING = "model.embed_tokens_per_layer.weight"
LAYER_PROJECTION = "model.per_layer_model_projection"
_GATE, _OUT = "per_layer_input_gate", "per_layer_projection"

Vector = Callable[[str], NDArray[np.float32]]
Matrix = Callable[[str], NativeWeight]


def model_fields(config: ModelConfig, matrix: Matrix, vector: Vector) -> dict[str, Any]:
    """Fields of a ``ModelStruct``."""
    if config.gemma4 is None or not config.gemma4.layer_inputs:
        return {}
    return {
        "layer_projection": ctypes.addressof(matrix(LAYER_PROJECTION).struct),
        "layer_projection_norm": vector("model.per_layer_projection_norm.weight").ctypes.data,
    }


class LayerRows:
    """Tokens' embeddings of each layer, read from the file's map: the table is larger than the rest of the model."""

    def __init__(self, stored: StoredTensor, size: int) -> None:
        """``size``: numbers of a layer."""
        self._rows, self._scale = StoredRows(stored), np.float32(size**0.5)

    @classmethod
    def of(cls, config: ModelConfig, weights: Mapping[str, Any]) -> LayerRows | None:
        """Those of a model; None if it has none."""
        if config.gemma4 is None or not config.gemma4.layer_inputs:
            return None
        return cls(as_stored(weights[LAYER_EMBEDDING]), config.gemma4.layer_inputs)

    def __call__(self, tokens: Sequence[int]) -> Floats:
        """float32 [n, layers * size], scaled."""
        return self._rows.rows(np.array(tokens, np.int64)) * self._scale


def missing_projections(config: ModelConfig, layer: int) -> str:
    """Those of ``kv`` that a layer does not have: it reads another's keys and values, or its values are its keys."""
    own = config.gemma4
    if own is None:
        return ""
    if own.reads[layer] is not None:
        return "kv"
    return "v" if own.values_are_keys and config.window(layer) is None else ""


def layer_matrices(config: ModelConfig, name: str) -> Iterator[str]:
    """The matrices that read a layer's embeddings."""
    if config.gemma4 is not None and config.gemma4.layer_inputs:
        yield from (name + _GATE, name + _OUT)


def layer_fields(
    config: ModelConfig, name: str, layer: int, vector: Vector, matrix: Matrix, held: list[object]
) -> dict[str, Any]:
    """Fields of a ``LayerStruct`` for a layer whose weights' names begin with ``name``; ``held``: as elsewhere."""
    own = config.gemma4
    if own is None:
        return {}
    reads, width = own.reads[layer], config.head_dim_of(layer)
    ones = np.ones(width, np.float32)  # the norm of values has no weight
    fields: dict[str, Any] = {
        "kv_heads": config.kv_heads_of(layer),
        "head_dim": width,
        "reads": 0 if reads is None else reads + 1,
        "values_are_keys": missing_projections(config, layer) == "v",
        "v_norm": ones.ctypes.data,
        "output_scale": vector(name + "layer_scalar").ctypes.data,
    }
    held.append(ones)
    if own.layer_inputs:
        inputs = LayerInputStruct(
            gate=matrix(name + _GATE).struct,
            out=matrix(name + _OUT).struct,
            norm=vector(name + "post_per_layer_input_norm.weight").ctypes.data,
        )
        held.append(inputs)
        fields["input"] = ctypes.addressof(inputs)
    return fields


def beside_fields(config: ModelConfig, name: str, vector: Vector, held: list[object]) -> dict[str, Any]:
    """Fields of a ``LayerStruct`` whose MLP has experts beside it; ``name``: of both, ``model.layers.3.mlp.``."""
    if config.experts is None or not config.experts.beside:
        return {}
    router = vector(name + "router_scale") * np.float32(config.hidden_size**-0.5)
    norms = ("expert_norm", "mlp_output_norm", "expert_output_norm")
    struct = BesideStruct(
        router_norm=router.ctypes.data,
        expert_scale=vector(name + "expert_scale").ctypes.data,
        **{norm: vector(f"{name}{norm}.weight").ctypes.data for norm in norms},
    )
    held += [router, struct]
    return {"beside": ctypes.addressof(struct)}
