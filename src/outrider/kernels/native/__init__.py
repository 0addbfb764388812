"""C functions, compiled on the machine that runs them.

Names are imported when they are first used: ``compile`` and ``library`` need no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outrider.kernels.native.build import (
        AttentionStruct,
        ForwardStruct,
        LayerStruct,
        LinearStruct,
        brgemm_functions,
        native_library,
    )

__all__ = ["AttentionStruct", "ForwardStruct", "LayerStruct", "LinearStruct", "brgemm_functions", "native_library"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("outrider.kernels.native.build"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
