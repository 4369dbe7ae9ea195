"""`nki.isa.constants`, of the current generation."""

from glia.nki.names.constants import *  # noqa: F403
from glia.nki.names.constants import __all__  # noqa: F401
