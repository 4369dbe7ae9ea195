"""NKI kernels as operations of PyTorch, from glia."""

from glia.nki.beta1 import trace as nki_jit

__all__ = ["nki_jit"]
