"""Options of kernels that the vendor ships."""

from glia.kernels.earlier_options import *  # noqa: F403
from glia.kernels.earlier_options import __all__  # noqa: F401
