"""What torch_xla calls when a program is to be divided among devices, from glia."""

from glia_dropin.xla_plugin import initialize

__all__ = ["initialize"]
