"""`neuronxcc.nki.typing`, of the earlier generation."""

from glia.nki.beta1.typing import *  # noqa: F403
from glia.nki.beta1.typing import __all__  # noqa: F401
