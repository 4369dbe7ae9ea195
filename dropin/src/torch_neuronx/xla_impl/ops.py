"""Operators of models and NKI kernels as operations of PyTorch, from glia."""

from glia.nki.beta1 import trace as nki_jit
from glia_dropin.torch_operators import Argmax, RmsNorm, Softmax, TopK, xla_hlo_call

__all__ = ["Argmax", "RmsNorm", "Softmax", "TopK", "nki_jit", "xla_hlo_call"]
