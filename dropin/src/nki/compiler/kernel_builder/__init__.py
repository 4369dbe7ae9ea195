"""`nki.compiler.kernel_builder`: functions that write their outputs, as programs."""

from glia.nki.internals.builder import *  # noqa: F403
from glia.nki.internals.builder import __all__  # noqa: F401
