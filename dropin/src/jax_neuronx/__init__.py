"""NKI kernels on arrays of JAX, from glia."""

from glia.nki.beta1.run.framework_calls import nki_call

__all__ = ["nki_call"]
