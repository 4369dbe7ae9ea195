"""`nki.compiler.target`: names of targets."""

from glia_dropin.nki.target import *  # noqa: F403
from glia_dropin.nki.target import __all__  # noqa: F401
