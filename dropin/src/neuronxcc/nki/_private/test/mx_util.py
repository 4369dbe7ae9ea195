"""Helpers of the vendor's tests: those that glia has; others say that they are missing."""

from glia.nki.beta1.kernels import missing_kernel
from glia.nki.beta1.mx import nc_matmul_mx_golden, quantize_mx_golden

__all__ = ["nc_matmul_mx_golden", "quantize_mx_golden"]

__getattr__ = missing_kernel("neuronxcc.nki._private.test.mx_util")
