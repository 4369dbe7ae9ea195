"""Kernels that AWS ships in this module; importing one that glia lacks is NotShipped."""

from glia_dropin.kernels.mlp import mlp_isa_kernel
from glia_dropin.neuronxcc.shipping import missing_kernel

__all__ = ["mlp_isa_kernel"]

__getattr__ = missing_kernel("neuronxcc.nki._private_kernels.mlp")
