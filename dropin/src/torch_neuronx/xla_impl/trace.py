"""Models traced for a device, from glia."""

from glia_dropin.torch_tracing import trace

__all__ = ["trace"]
