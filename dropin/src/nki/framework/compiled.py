"""`nki.framework.compiled`: kernels that keep what they compile to."""

from glia_dropin.nki.compiled_kernels import *  # noqa: F403
from glia_dropin.nki.compiled_kernels import __all__  # noqa: F401
