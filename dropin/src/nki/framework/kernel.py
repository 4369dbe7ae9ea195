"""`nki.framework.kernel`: the class of kernels."""

from glia.nki.run.kernel import Kernel

__all__ = ["Kernel"]
