"""Layers of experts for the native library."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.models.experts import Experts, Router
from outrider.native.model_structs import MLPStruct, RoutingStruct
from outrider.native.weights import NativeWeight

__all__ = ["expert_fields"]

_ROUTERS: Mapping[Router, int] = {"softmax": 0, "sigmoid": 1, "softmax_of_used": 2}
"""``enum outrider_router``."""

_Floats = NDArray[np.float32]


def expert_fields(
    experts: Experts,
    name: str,
    mlp: Callable[[str], MLPStruct],
    router: Callable[[str], NativeWeight],
    vector: Callable[[str], _Floats],
    held: list[object],
) -> dict[str, Any]:
    """The fields of ``LayerStruct`` for the experts whose weights' names begin with ``name``.

    Args:
        mlp: the matrices of an MLP whose names begin so.
        router: the packed matrix of a name, with all outputs.
        vector: the floats of a name, which stay where they are.
        held: takes what the fields point to.
    """
    mlps = (MLPStruct * experts.count)(*(mlp(f"{name}experts.{e}.") for e in range(experts.count)))
    held.append(mlps)
    fields: dict[str, Any] = {
        "experts": experts.count,
        "experts_used": experts.used,
        "normalised": experts.normalised,
        "router": router(name + "gate").struct,
        "expert": ctypes.addressof(mlps),
    }
    if experts.shared_size:
        shared = mlp(name + "shared_expert.")
        held.append(shared)
        fields["shared_expert"] = ctypes.addressof(shared)
        if experts.shared_gate:
            fields["shared_expert_gate"] = vector(name + "shared_expert_gate.weight").ctypes.data  # [1, d]
    if not experts.plain:
        routing = _routing(experts, name + "gate.", vector)
        held.append(routing)
        fields["routing"] = ctypes.addressof(routing)
    return fields


def _routing(experts: Experts, name: str, vector: Callable[[str], _Floats]) -> RoutingStruct:
    return RoutingStruct(
        kind=_ROUTERS[experts.router],
        scales_inputs=experts.scales_inputs,
        groups=experts.groups,
        groups_used=experts.groups_used,
        best_of_group=experts.best_of_group,
        sum_added=experts.sum_added,
        least_sum=experts.least_sum,
        scale=experts.scale,
        bias=vector(name + "e_score_correction_bias").ctypes.data if experts.score_bias else None,
    )
