"""`neuronxcc.nki.typing` of NKI Beta 1."""

from glia.nki.beta1.typing import *  # noqa: F403
from glia.nki.beta1.typing import __all__  # noqa: F401
