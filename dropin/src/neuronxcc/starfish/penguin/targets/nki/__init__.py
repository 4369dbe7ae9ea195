"""Private names of AWS's compiler, from glia."""

from glia_dropin.neuronxcc.starfish import vnc

__all__ = ["vnc"]
