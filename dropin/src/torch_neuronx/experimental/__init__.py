"""Names that torch_neuronx had as experimental, from glia."""

from glia_dropin.torch_tracing import (
    multicore_context,
    neuron_cores_context,
    set_multicore,
    set_neuron_cores,
)
from torch_neuronx.experimental import profiler

__all__ = [
    "multicore_context",
    "neuron_cores_context",
    "profiler",
    "set_multicore",
    "set_neuron_cores",
]
