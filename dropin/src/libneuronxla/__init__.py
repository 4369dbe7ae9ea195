"""HLO modules compiled for clients that hand them over, and the plugin for torch_xla, from glia."""

from glia import __version__
from glia_dropin.xla_compile import neuron_xla_compile
from glia_dropin.xla_plugin import configure_environment, supported_clients
from libneuronxla import libneuronpjrt_path, neuron_cc_cache, neuron_cc_wrapper

__all__ = [
    "__version__",
    "configure_environment",
    "libneuronpjrt_path",
    "neuron_cc_cache",
    "neuron_cc_wrapper",
    "neuron_xla_compile",
    "supported_clients",
]
