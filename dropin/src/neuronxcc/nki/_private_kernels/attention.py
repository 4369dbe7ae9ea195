"""Kernels that the vendor ships: those that glia has; others say that they are missing."""

from glia_dropin.kernels.attention import attention_isa_kernel
from glia_dropin.neuronxcc.shipping import missing_kernel

__all__ = ["attention_isa_kernel"]

__getattr__ = missing_kernel("neuronxcc.nki._private_kernels.attention")
