"""`neuron_dtypes`: the dtypes of NKI on host arrays, and conversions between them."""

from glia_dropin.host_dtypes import *  # noqa: F403
from glia_dropin.host_dtypes import __all__  # noqa: F401
