"""C code compiled on the machine that runs it."""

from outrider.models.compiled.build import kernels

__all__ = ["kernels"]
