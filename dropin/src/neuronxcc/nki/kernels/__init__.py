"""Kernels that AWS ships in this module; importing one that glia lacks is NotShipped."""

from glia_dropin.kernels.attention import (
    allocated_fused_self_attn_for_SD_small_head_size,
    flash_attn_bwd,
    flash_fwd,
    fused_self_attn_for_SD_small_head_size,
)
from glia_dropin.kernels.mlp import allocated_fused_rms_norm_qkv
from glia_dropin.kernels.shipped import (
    add_kernel_nx8x128x512,
    resize_nearest_fixed_dma_kernel,
    select_and_scatter_kernel,
)
from glia_dropin.neuronxcc.shipping import missing_kernel

__all__ = [
    "add_kernel_nx8x128x512",
    "allocated_fused_rms_norm_qkv",
    "allocated_fused_self_attn_for_SD_small_head_size",
    "flash_attn_bwd",
    "flash_fwd",
    "fused_self_attn_for_SD_small_head_size",
    "resize_nearest_fixed_dma_kernel",
    "select_and_scatter_kernel",
]

__getattr__ = missing_kernel("neuronxcc.nki.kernels")
