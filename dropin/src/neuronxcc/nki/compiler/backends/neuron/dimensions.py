"""Names inside the compiler that public kernels import."""

from glia.nki.beta1.internal import *  # noqa: F403
from glia.nki.beta1.internal import __all__  # noqa: F401
