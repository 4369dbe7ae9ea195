"""What public callers import of the vendor's private names, from glia."""

from glia.nki.beta1.starfish import vnc

__all__ = ["vnc"]
