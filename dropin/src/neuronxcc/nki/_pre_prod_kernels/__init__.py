"""Options of kernels that AWS ships in this package; importing a kernel is NotShipped."""

from glia_dropin.kernels.options import *  # noqa: F403
from glia_dropin.kernels.options import __all__  # noqa: F401
from glia_dropin.neuronxcc.shipping import missing_kernel

__getattr__ = missing_kernel("neuronxcc.nki._pre_prod_kernels")
