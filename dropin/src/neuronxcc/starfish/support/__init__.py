"""Helpers that kernels' callers import."""

from neuronxcc.starfish.support import dtype

__all__ = ["dtype"]
