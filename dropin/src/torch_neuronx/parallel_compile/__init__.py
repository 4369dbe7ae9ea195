"""Where torch_neuronx has `neuron_parallel_compile`."""

from torch_neuronx.parallel_compile import neuron_parallel_compile

__all__ = ["neuron_parallel_compile"]
