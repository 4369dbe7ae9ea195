"""`nki.compiler.kernel_builder.isa`: instructions under its names."""

from glia.nki.internals.builder_isa import *  # noqa: F403
from glia.nki.internals.builder_isa import __all__  # noqa: F401
