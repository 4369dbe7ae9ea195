"""NKI kernels on tensors of PyTorch, from glia."""

from glia.nki.beta1 import jit as nki_jit
from torch_neuronx import nki_hop

__all__ = ["nki_hop", "nki_jit"]
