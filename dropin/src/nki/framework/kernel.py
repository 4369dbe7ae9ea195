"""`nki.framework.kernel`: the class of kernels."""

from glia.nki.kernel import Kernel

__all__ = ["Kernel"]
