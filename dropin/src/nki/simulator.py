"""`nki.simulator`: kernels run step by step."""

from glia.nki.internals.simulator import simulate_kernel

__all__ = ["simulate_kernel"]
