"""`nki.debugger`: refused, since dumps of devices are in no public format."""

from glia.nki.internals.simulator import debug_kernel

__all__ = ["debug_kernel"]
