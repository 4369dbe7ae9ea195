"""`allclose`, from glia_dropin.neuronxcc.starfish."""

from glia_dropin.neuronxcc.starfish import allclose

__all__ = ["allclose"]
