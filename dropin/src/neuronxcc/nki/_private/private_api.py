"""Packed dtypes; importing any other name is NotShipped."""

from glia_dropin.neuronxcc.mx import float4_e2m1fn_x4, float8_e4m3fn_x4, float8_e5m2_x4
from glia_dropin.neuronxcc.shipping import missing_kernel

__all__ = ["float4_e2m1fn_x4", "float8_e4m3fn_x4", "float8_e5m2_x4"]

__getattr__ = missing_kernel("neuronxcc.nki._private.private_api")
