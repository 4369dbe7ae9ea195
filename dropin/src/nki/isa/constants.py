"""`nki.isa.constants`, of the current generation."""

from glia.nki.constants import *  # noqa: F403
from glia.nki.constants import __all__  # noqa: F401
