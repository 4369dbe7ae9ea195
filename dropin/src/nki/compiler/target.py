"""`nki.compiler.target`: names of targets."""

from glia.nki.internals.target import *  # noqa: F403
from glia.nki.internals.target import __all__  # noqa: F401
