"""`nki.framework`: its undocumented inside that public tools use."""

from nki.framework import compiled, kernel

__all__ = ["compiled", "kernel"]
