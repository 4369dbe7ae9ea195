"""NKI kernels on arrays of JAX, from glia."""

from glia.nki.beta1.frameworks import nki_call

__all__ = ["nki_call"]
