"""Kernels that AWS ships in this module; importing one that glia lacks is NotShipped."""

from glia_dropin.kernels.shipped import conv2d_dw_fb01_io01_01bf_rep_nhwc_Pcinh
from glia_dropin.neuronxcc.shipping import missing_kernel

__all__ = ["conv2d_dw_fb01_io01_01bf_rep_nhwc_Pcinh"]

__getattr__ = missing_kernel("neuronxcc.nki._private_kernels.conv")
