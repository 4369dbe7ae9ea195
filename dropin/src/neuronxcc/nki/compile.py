"""`GenericKernel`, the class of kernels, from glia_dropin.neuronxcc.internal."""

from glia_dropin.neuronxcc.internal import GenericKernel

__all__ = ["GenericKernel"]
