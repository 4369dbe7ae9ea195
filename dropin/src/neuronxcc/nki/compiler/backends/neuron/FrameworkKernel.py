"""Kernels that frameworks call, from glia.nki.beta1.run.framework_kernel."""  # noqa: N999, the public name

from glia.nki.beta1.run.framework_kernel import FrameworkKernel, UnifiedKernel

__all__ = ["FrameworkKernel", "UnifiedKernel"]
