"""What glia has of neuronxcc: NKI of the earlier generation, and dtypes of the host."""

from neuronxcc import nki, starfish

__all__ = ["nki", "starfish"]
