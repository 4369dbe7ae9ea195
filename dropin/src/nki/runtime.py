"""`nki.runtime`: NEFFs on the simulated device."""

from glia.nki.internals.device import *  # noqa: F403
from glia.nki.internals.device import __all__  # noqa: F401
