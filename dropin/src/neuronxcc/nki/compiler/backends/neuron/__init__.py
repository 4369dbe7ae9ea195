"""Names inside the compiler that public kernels import."""

from neuronxcc.nki.compiler.backends.neuron import dimensions, indexing, tensor

__all__ = ["dimensions", "indexing", "tensor"]
