"""Private names of AWS's compiler that public code imports, from glia."""

from glia_dropin.neuronxcc.starfish import vnc

__all__ = ["vnc"]
