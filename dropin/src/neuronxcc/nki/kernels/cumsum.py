"""Kernels that the vendor ships: those that glia has; others say that they are missing."""

from glia.kernels.earlier import cumsum
from glia.nki.beta1.kernels import missing_kernel

__all__ = ["cumsum"]

__getattr__ = missing_kernel("neuronxcc.nki.kernels.cumsum")
