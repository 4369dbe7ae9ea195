"""`nki.language`, of the current generation."""

from glia.nki.language import *  # noqa: F403
from glia.nki.language import __all__, __getattr__  # noqa: F401
