"""`nki.experimental`: what nki.language has by now."""

from glia.nki.internals.experimental import *  # noqa: F403
from glia.nki.internals.experimental import __all__  # noqa: F401
