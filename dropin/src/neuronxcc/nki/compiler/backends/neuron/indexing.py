"""Names inside the compiler that public kernels import."""

from glia_dropin.neuronxcc.internal import *  # noqa: F403
from glia_dropin.neuronxcc.internal import __all__  # noqa: F401
