"""Kernels that AWS ships in this module; importing one that glia lacks is NotShipped."""

from glia_dropin.kernels.shipped import cumsum
from glia_dropin.neuronxcc.shipping import missing_kernel

__all__ = ["cumsum"]

__getattr__ = missing_kernel("neuronxcc.nki.kernels.cumsum")
