"""Private names of the vendor's compiler, from glia."""

from glia.nki.beta1.starfish import vnc

__all__ = ["vnc"]
