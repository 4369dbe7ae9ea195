"""Kernels that the vendor ships; each says that it is missing."""

from glia_dropin.neuronxcc.shipping import missing_kernel

__getattr__ = missing_kernel("neuronxcc.nki._pre_prod_kernels.output_proj")
