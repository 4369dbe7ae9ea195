"""Enumerations of `neuronxcc.nki.isa`."""

from glia.nki.beta1.isa import *  # noqa: F403
from glia.nki.beta1.isa import __all__  # noqa: F401
