"""Kernels that AWS ships in this module; importing one that glia lacks is NotShipped."""

from glia_dropin.kernels.shipped import resize_nearest_fixed_dma_kernel, select_and_scatter_kernel
from glia_dropin.neuronxcc.shipping import missing_kernel

__all__ = ["resize_nearest_fixed_dma_kernel", "select_and_scatter_kernel"]

__getattr__ = missing_kernel("neuronxcc.nki.kernels.vision")
