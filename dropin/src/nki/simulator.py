"""`nki.simulator`: kernels run step by step."""

from glia_dropin.nki.simulator import simulate_kernel

__all__ = ["simulate_kernel"]
