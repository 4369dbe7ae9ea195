"""HLO modules compiled for clients that hand them over, from glia."""

from glia import __version__
from glia_dropin.xla_compile import neuron_xla_compile
from libneuronxla import neuron_cc_cache, neuron_cc_wrapper

__all__ = ["__version__", "neuron_cc_cache", "neuron_cc_wrapper", "neuron_xla_compile"]
