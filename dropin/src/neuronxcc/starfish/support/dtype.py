"""Dtypes of the host."""

from glia_dropin.neuronxcc.starfish import *  # noqa: F403
from glia_dropin.neuronxcc.starfish import __all__  # noqa: F401
