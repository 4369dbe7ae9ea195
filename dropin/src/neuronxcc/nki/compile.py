"""`GenericKernel`, the class of kernels, from glia.nki.beta1.internal."""

from glia.nki.beta1.internal import GenericKernel

__all__ = ["GenericKernel"]
