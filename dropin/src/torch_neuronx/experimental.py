"""Names that torch_neuronx had as experimental, from glia."""

from glia_dropin.torch_tracing import (
    multicore_context,
    neuron_cores_context,
    set_multicore,
    set_neuron_cores,
)

__all__ = ["multicore_context", "neuron_cores_context", "set_multicore", "set_neuron_cores"]
