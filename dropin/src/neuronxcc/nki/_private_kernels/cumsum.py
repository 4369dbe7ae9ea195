"""Kernels that the vendor ships: those that glia has; others say that they are missing."""

from glia_dropin.kernels.shipped import cumsum
from glia_dropin.neuronxcc.shipping import missing_kernel

__all__ = ["cumsum"]

__getattr__ = missing_kernel("neuronxcc.nki._private_kernels.cumsum")
