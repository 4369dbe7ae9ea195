"""Kernels that AWS ships in this module; importing one is NotShipped."""

from glia_dropin.neuronxcc.shipping import missing_kernel

__getattr__ = missing_kernel("neuronxcc.nki._pre_prod_kernels.moe_token_gen")
