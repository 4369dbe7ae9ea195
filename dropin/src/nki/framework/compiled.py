"""`nki.framework.compiled`: kernels that keep what they compile to."""

from glia.nki.internals.kernels import *  # noqa: F403
from glia.nki.internals.kernels import __all__  # noqa: F401
