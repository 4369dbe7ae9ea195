"""Names inside the compiler that public kernels import."""

from neuronxcc.nki.compiler.backends import neuron

__all__ = ["neuron"]
