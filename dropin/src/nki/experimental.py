"""`nki.experimental`: what nki.language has by now."""

from glia_dropin.nki.experimental import *  # noqa: F403
from glia_dropin.nki.experimental import __all__  # noqa: F401
