"""What is changed of traced models, from glia."""

from glia_dropin.torch_tracing import replace_weights

__all__ = ["replace_weights"]
