"""Kernels that frameworks call, from glia.nki.beta1.framework."""  # noqa: N999, the public name

from glia.nki.beta1.framework import FrameworkKernel, UnifiedKernel

__all__ = ["FrameworkKernel", "UnifiedKernel"]
