"""NKI kernels on tensors of PyTorch, from glia."""

from glia import nki
from glia.nki.beta1 import trace as nki_jit
from glia.nki.run.frameworks import nki_op
from torch_neuronx import nki_hop, utils, xla_impl

__all__ = ["nki", "nki_hop", "nki_jit", "nki_op", "utils", "xla_impl"]
