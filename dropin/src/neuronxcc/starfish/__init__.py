"""Helpers that kernels' callers import."""

from neuronxcc.starfish import support

__all__ = ["support"]
