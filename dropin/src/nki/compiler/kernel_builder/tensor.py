"""`nki.compiler.kernel_builder.tensor`: what parameters are."""

from glia.nki.internals.builder import Tensor

__all__ = ["Tensor"]
