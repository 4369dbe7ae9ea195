"""Names of `neuronxcc.nki.compiler.backends.neuron` that public kernels import."""

from glia.nki.beta1.creation import nc
from glia.nki.beta1.index import Index
from glia.nki.beta1.tensor import Tensor

VNC = nc
local_tile = Tensor
TileIndex = Index

__all__ = ["VNC", "TileIndex", "local_tile"]
