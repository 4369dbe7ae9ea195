"""Kernels that the vendor ships: those that glia has; others say that they are missing."""

from glia.kernels.earlier_attention import flash_attn_bwd, flash_fwd
from glia.nki.beta1.kernels import missing_kernel

__all__ = ["flash_attn_bwd", "flash_fwd"]

__getattr__ = missing_kernel("neuronxcc.nki.kernels")
