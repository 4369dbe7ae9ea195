"""What public callers import of the vendor's private names, from glia."""

from glia_dropin.neuronxcc.starfish import vnc

__all__ = ["vnc"]
