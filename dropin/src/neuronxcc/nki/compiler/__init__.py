"""`neuronxcc.nki.compiler` of NKI Beta 1."""

from glia.nki.beta1.compiler import *  # noqa: F403
from glia.nki.beta1.compiler import __all__  # noqa: F401
from neuronxcc.nki.compiler import backends  # noqa: F401
