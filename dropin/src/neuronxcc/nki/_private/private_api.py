"""Packed dtypes; other names of the vendor's say that they are missing."""

from glia.nki.beta1.kernels import missing_kernel
from glia.nki.beta1.mx import float4_e2m1fn_x4, float8_e4m3fn_x4, float8_e5m2_x4

__all__ = ["float4_e2m1fn_x4", "float8_e4m3fn_x4", "float8_e5m2_x4"]

__getattr__ = missing_kernel("neuronxcc.nki._private.private_api")
