"""`nki.compiler.ncc_driver`: programs as NEFFs, and what they cost."""

from glia_dropin.nki.driver import *  # noqa: F403
from glia_dropin.nki.driver import __all__  # noqa: F401
