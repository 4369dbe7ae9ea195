"""Which device kernels and models are for, from glia."""

from glia.arch.instances import COMPILED_TARGETS as SUPPORTED_TYPES
from glia_dropin.torch_tracing import get_platform_target

__all__ = ["SUPPORTED_TYPES", "get_platform_target"]
