"""What glia has of neuronxcc: NKI Beta 1, and dtypes of the host."""

from neuronxcc import nki, starfish

__all__ = ["nki", "starfish"]
