"""C code compiled on the machine that runs it."""

from outrider.kernels.native.build import Attention, Dense, Layer, Run, kernels, products

__all__ = ["Attention", "Dense", "Layer", "Run", "kernels", "products"]
