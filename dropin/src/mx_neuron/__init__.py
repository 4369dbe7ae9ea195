"""Models of MXNet compiled for a device, from glia. Import it before mxnet."""

from glia import __version__
from glia_dropin.mxnet_compiling import compile

__all__ = ["__version__", "compile"]
