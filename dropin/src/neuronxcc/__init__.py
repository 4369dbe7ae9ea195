"""The part of neuronxcc that glia provides: NKI Beta 1, and dtypes of the host."""

from glia import __version__
from glia_dropin.neuronxcc import log_levels
from neuronxcc import nki, starfish

__all__ = ["__version__", "log_levels", "nki", "starfish"]
