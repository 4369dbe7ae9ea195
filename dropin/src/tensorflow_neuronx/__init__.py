"""Functions of TensorFlow traced for a device, from glia."""

from glia import __version__
from glia_dropin.tensorflow_tracing import analyze_model, auto_multicore, trace

__all__ = ["__version__", "analyze_model", "auto_multicore", "trace"]
