"""Kernels that the vendor ships: those that glia has; others say that they are missing."""

from glia.kernels.earlier_mlp import rmsnorm_qkv_isa_kernel
from glia.nki.beta1.kernels import missing_kernel

__all__ = ["rmsnorm_qkv_isa_kernel"]

__getattr__ = missing_kernel("neuronxcc.nki._private_kernels.qkv")
