"""`allclose`, from glia.nki.beta1.starfish."""

from glia.nki.beta1.starfish import allclose

__all__ = ["allclose"]
