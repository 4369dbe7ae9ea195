"""`nki.compiler.kernel_builder.isa`: instructions under its names."""

from glia_dropin.nki.kernel_builder_isa import *  # noqa: F403
from glia_dropin.nki.kernel_builder_isa import __all__  # noqa: F401
