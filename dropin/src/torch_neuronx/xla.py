"""What torch_xla calls while it is imported, from glia."""

from glia_dropin.xla_plugin import init

__all__ = ["init"]
