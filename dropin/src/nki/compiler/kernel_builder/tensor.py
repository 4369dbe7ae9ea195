"""`nki.compiler.kernel_builder.tensor`: what parameters are."""

from glia_dropin.nki.kernel_builder import Tensor

__all__ = ["Tensor"]
