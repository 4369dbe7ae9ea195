"""`nki.compiler.ncc_driver`: programs as NEFFs, and what they cost."""

from glia.nki.internals.compiled import *  # noqa: F403
from glia.nki.internals.compiled import __all__  # noqa: F401
