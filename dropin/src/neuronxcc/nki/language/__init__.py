"""`neuronxcc.nki.language`, of the earlier generation."""

from glia.nki.beta1.language import *  # noqa: F403
from glia.nki.beta1.language import __all__, __getattr__  # noqa: F401
from neuronxcc.nki.language import constants  # noqa: F401
