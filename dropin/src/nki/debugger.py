"""`nki.debugger`: refused, since dumps of devices are in no public format."""

from glia_dropin.nki.simulator import debug_kernel

__all__ = ["debug_kernel"]
