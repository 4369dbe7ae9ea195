"""`nki.compiler.kernel_builder.builder`: the same names."""

from glia.nki.internals.builder import *  # noqa: F403
from glia.nki.internals.builder import __all__  # noqa: F401
