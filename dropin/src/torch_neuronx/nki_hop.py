"""NKI kernels as operations of PyTorch, from glia."""

from glia.nki.beta1.run.framework_calls import wrap_nki

__all__ = ["wrap_nki"]
