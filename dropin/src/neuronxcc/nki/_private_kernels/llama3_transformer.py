"""Kernels that AWS ships in this module; importing one is NotShipped."""

from glia_dropin.neuronxcc.shipping import missing_kernel

__getattr__ = missing_kernel("neuronxcc.nki._private_kernels.llama3_transformer")
