"""C functions, compiled on the machine that runs them."""

from outrider.kernels.native.build import (
    AttentionStruct,
    ForwardStruct,
    LayerStruct,
    LinearStruct,
    brgemm_functions,
    native_library,
)

__all__ = ["AttentionStruct", "ForwardStruct", "LayerStruct", "LinearStruct", "brgemm_functions", "native_library"]
