"""Kernels that the vendor ships, each of which says that it is missing, and their options."""

from glia.kernels.earlier_options import *  # noqa: F403
from glia.kernels.earlier_options import __all__  # noqa: F401
from glia.nki.beta1.kernels import missing_kernel

__getattr__ = missing_kernel("neuronxcc.nki._pre_prod_kernels")
