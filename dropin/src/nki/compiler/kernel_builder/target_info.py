"""`nki.compiler.kernel_builder.target_info`: what a kernel is for."""

from glia_dropin.nki.kernel_builder import get_target_info

__all__ = ["get_target_info"]
