"""`nki.collectives`, of the current generation."""

from glia.nki.collectives import *  # noqa: F403
from glia.nki.collectives import __all__, __getattr__  # noqa: F401
