"""Which device kernels are for, from glia."""

from glia.nki.names.targets import target_name as get_platform_target

__all__ = ["get_platform_target"]
