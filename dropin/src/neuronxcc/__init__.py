"""The part of neuronxcc that glia provides: NKI Beta 1, and dtypes of the host."""

from neuronxcc import nki, starfish

__all__ = ["nki", "starfish"]
