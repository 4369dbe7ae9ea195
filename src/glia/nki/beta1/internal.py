"""Names of `neuronxcc.nki.compile` and `.compiler.backends.neuron` that public code imports."""

from glia.nki.beta1.creation import nc
from glia.nki.beta1.index import Index
from glia.nki.beta1.launch import Kernel
from glia.nki.beta1.tensor import Tensor

GenericKernel = Kernel
VNC = nc
local_tile = Tensor
TileIndex = Index

__all__ = ["VNC", "GenericKernel", "TileIndex", "local_tile"]
