"""NKI kernels on tensors of PyTorch, from glia."""

from glia.nki import collectives, dtype, isa, jit, language, simulate, typing

__all__ = ["collectives", "dtype", "isa", "jit", "language", "simulate", "typing"]
