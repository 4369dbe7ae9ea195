"""Dtypes of the host."""

from glia.nki.beta1.starfish import *  # noqa: F403
from glia.nki.beta1.starfish import __all__  # noqa: F401
