"""Where the plugin of JAX and torch_xla is, from glia."""

from glia_dropin.xla_plugin import libneuronpjrt_path

__all__ = ["libneuronpjrt_path"]
