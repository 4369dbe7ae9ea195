"""`neuronxcc.nki.isa` of NKI Beta 1."""

from glia.nki.beta1.isa import *  # noqa: F403
from glia.nki.beta1.isa import __all__  # noqa: F401
from glia_dropin.kernels.attention import attention_kernel  # noqa: F401
from neuronxcc.nki.isa import constants  # noqa: F401
