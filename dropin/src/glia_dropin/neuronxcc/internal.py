"""Names of `neuronxcc.nki.compile` and `.compiler.backends.neuron` that public code imports."""

from glia.nki.beta1.api.creation import nc
from glia.nki.beta1.run.launch import Kernel
from glia.nki.beta1.tensors.index import Index
from glia.nki.beta1.tensors.tensor import Tensor

GenericKernel = Kernel
VNC = nc
local_tile = Tensor
TileIndex = Index

__all__ = ["VNC", "GenericKernel", "TileIndex", "local_tile"]
