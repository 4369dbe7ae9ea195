"""`nki.isa`, of the current generation."""

from glia.nki.isa import *  # noqa: F403
from glia.nki.isa import __all__, __getattr__  # noqa: F401
