"""Kernels that AWS ships in this module; importing one that glia lacks is NotShipped."""

from glia_dropin.kernels.attention import (
    FlashConfig,
    attention_isa_kernel,
    flash_attn_bwd,
    flash_fwd,
    fused_self_attn_for_SD_small_head_size,
)
from glia_dropin.neuronxcc.shipping import missing_kernel

__all__ = [
    "FlashConfig",
    "attention_isa_kernel",
    "flash_attn_bwd",
    "flash_fwd",
    "fused_self_attn_for_SD_small_head_size",
]

__getattr__ = missing_kernel("neuronxcc.nki.kernels.attention")
