"""Options of kernels that AWS ships."""

from glia_dropin.kernels.options import *  # noqa: F403
from glia_dropin.kernels.options import __all__  # noqa: F401
