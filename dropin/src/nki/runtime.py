"""`nki.runtime`: NEFFs on the simulated device."""

from glia_dropin.nki.spike import *  # noqa: F403
from glia_dropin.nki.spike import __all__  # noqa: F401
