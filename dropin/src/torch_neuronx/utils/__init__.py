"""Which device kernels and models are for, from glia."""

from glia_dropin.torch_tracing import get_platform_target
from torch_neuronx.utils import utils

__all__ = ["get_platform_target", "utils"]
