"""C code compiled on the machine that runs it."""

from outrider.models.compiled.build import Attention, Dense, Layer, Run, kernels, products

__all__ = ["Attention", "Dense", "Layer", "Run", "kernels", "products"]
