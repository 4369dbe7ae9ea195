"""`nki.compiler.kernel_builder.builder`: the same names."""

from glia_dropin.nki.kernel_builder import *  # noqa: F403
from glia_dropin.nki.kernel_builder import __all__  # noqa: F401
