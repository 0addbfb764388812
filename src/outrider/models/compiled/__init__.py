"""C code compiled on the machine that runs it."""

from outrider.models.compiled.build import Attention, kernels, products

__all__ = ["Attention", "kernels", "products"]
